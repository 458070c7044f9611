package locktest

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// holding is the state of one lock in the model: its holders, sorted, and the last token.
type holding struct {
	holders [maxHolders]uint64 // leases; 0: none
	shared  bool               // the holders share the lock
	token   int64
}

// maxHolders is more than the number of workers.
const maxHolders = 12

// replaced returns the holders with to instead of from. 0 is a free place.
func (h holding) replaced(from, to uint64) (holders [maxHolders]uint64, ok bool) {
	holders = h.holders
	i := slices.Index(holders[:], from)
	if i < 0 {
		return holders, false
	}
	holders[i] = to
	slices.Sort(holders[:])
	return holders, true
}

func (h holding) count() int {
	return len(slices.DeleteFunc(slices.Clone(h.holders[:]), func(lease uint64) bool { return lease == 0 }))
}

// step describes a correct lock service. A lock has one holder at a time, or several that share it:
// at most permits in a Semaphore. A holder has it until it releases it or is notified that it is
// lost, and each holder has a greater token than all before.
func (k Kind) step(state, input, _ any) (bool, any) {
	h, e := state.(holding), input.(Event)
	if e.Op != "acquire" {
		holders, ok := h.replaced(e.Lease, 0)
		return ok, holding{holders, h.shared, h.token}
	}
	n := h.count()
	free := n == 0 || h.shared && e.Shared && (k != Semaphore || n < permits)
	holders, ok := h.replaced(0, e.Lease)
	return free && ok && e.Token > h.token, holding{holders, e.Shared, e.Token}
}

func (k Kind) model() porcupine.Model {
	m := byName
	m.Step = k.step
	return m
}

// byName checks each lock by itself.
var byName = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make(map[string][]porcupine.Operation)
		for _, o := range history {
			name := o.Input.(Event).Name
			parts[name] = append(parts[name], o)
		}
		var all [][]porcupine.Operation
		for _, p := range parts {
			all = append(all, p)
		}
		return all
	},
	Init: func() any { return holding{} },
}

// check asserts that the model allows the events. The loss of a lock is a separate operation, which
// takes place after its holder was notified, or should have been. At full size, check also asserts
// that contexts ended before another process could acquire the lock. Otherwise the timers that end
// them may be late, and check only logs by how much.
func check(t *testing.T, kind Kind, events []Event, late time.Duration) {
	count := make(map[string]int)
	least := time.Duration(math.MaxInt64)
	var history []porcupine.Operation
	for i, e := range events {
		count[e.Op]++
		if e.Timed {
			least = min(least, e.Margin)
		}
		if e.Return == 0 {
			e.Return = math.MaxInt64
		}
		history = append(history, porcupine.Operation{ClientId: i, Input: e, Call: e.Call, Return: e.Return})
	}
	t.Logf("%d acquired, %d released, %d expired", count["acquire"], count["release"], count["expire"])
	if least < math.MaxInt64 {
		t.Logf("contexts ended at least %v before the lock could pass; timers were late by at most %v",
			least.Round(time.Microsecond), late.Round(time.Microsecond))
	}
	if Full() && least <= 0 { // otherwise timers may be late
		t.Errorf("a context had not ended, or %v after the lock could pass", -least)
	}
	switch porcupine.CheckOperationsTimeout(kind.model(), history, time.Minute) {
	case porcupine.Illegal:
		t.Errorf("%s: a lock had too many holders at the same time, or a token did not grow", cmp.Or(kind, "exclusive"))
		explain(t, events)
	case porcupine.Unknown:
		t.Error("the history could not be checked in a minute")
	}
}

// explain logs the leases that overlap.
func explain(t *testing.T, events []Event) {
	type life struct {
		name        string
		lease       uint64
		token       int64
		from, until int64
		end         string
	}
	lives := make(map[uint64]*life)
	for _, e := range events {
		switch e.Op {
		case "acquire":
			lives[e.Lease] = &life{name: e.Name, lease: e.Lease, token: e.Token, from: e.Return, until: math.MaxInt64}
		default:
			if l := lives[e.Lease]; l != nil {
				l.until, l.end = e.Call, e.Op
			}
		}
	}
	var all []*life
	for _, l := range lives {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *life) int { return int(a.from - b.from) })
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.name == b.name && (b.from < a.until || b.token <= a.token) {
				t.Logf("%s: lease %x, token %d until %s; lease %x, token %d from %v before", a.name, a.lease, a.token,
					a.end, b.lease, b.token, time.Duration(a.until-b.from))
			}
		}
	}
}
