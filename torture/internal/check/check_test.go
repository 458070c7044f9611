package check

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

const ms = int64(time.Millisecond)

// made builds histories of key 1. Times are in milliseconds.
type made struct{ in Input }

func make1() *made {
	return &made{Input{Bound: 2 * time.Second, LostTTL: 5 * time.Second, Grace: 100 * time.Millisecond}}
}

func (m *made) op(kind history.Kind, process int, version, start, end int64, flags ...history.Flag) *made {
	op := history.Op{Kind: kind, Process: process, Key: 1, Version: version, Start: start * ms, End: end * ms}
	for _, f := range flags {
		op.Flags |= f
	}
	m.in.Ops = append(m.in.Ops, op)
	return m
}

// write is committed in the middle of its interval and acknowledged at its end.
func (m *made) write(process int, version, start, end int64) *made {
	middle := (start + end) / 2
	return m.op(history.Begin, process, 0, start, 0).op(history.Commit, process, version, start, middle).
		op(history.Invalidate, process, 0, middle+1, end)
}

// grouped gives each row two groups: group 1, and group 10 or 11 depending on the version. It adds
// the invalidation of a group.
func (m *made) grouped(process int, group uint32, start, end int64, flags ...history.Flag) *made {
	m.in.Groups = func(_ uint32, version int64) []uint32 { return []uint32{1, 10 + uint32(version%2)} }
	m.op(history.InvalidateGroup, process, 0, start, end, flags...)
	m.in.Ops[len(m.in.Ops)-1].Key = group
	return m
}

// after is a read with the token of a write that was acknowledged at a time.
func (m *made) after(process int, version, start, end, least, acked int64) *made {
	m.op(history.After, process, version, start, end)
	op := &m.in.Ops[len(m.in.Ops)-1]
	op.Least, op.Acked = least, acked*ms
	return m
}

// commit is a write without an invalidation.
func (m *made) commit(version, start, end int64) *made {
	return m.op(history.Begin, 0, 0, start, 0).op(history.Commit, 0, version, start, end)
}

func rules(r *Report) (found []Rule) {
	for _, v := range r.Violations {
		found = append(found, v.Rule)
	}
	return found
}

func TestRules(t *testing.T) {
	const get, fresh = history.Get, history.Fresh
	failover := func(m *made) *made {
		m.in.Failovers = []Window{{90 * ms, 200 * ms}}
		return m
	}
	for _, c := range []struct {
		name string
		made *made
		want []Rule
		lost int
	}{
		{"nothing but reads", make1().op(fresh, 0, 1, 10, 20).op(get, 0, 1, 10, 20), nil, 0},
		{"a write and its read", make1().write(0, 2, 100, 110).op(fresh, 1, 2, 111, 112), nil, 0},
		{"a read beside the write", make1().write(0, 2, 100, 110).op(fresh, 1, 1, 108, 112).op(fresh, 1, 2, 101, 108), nil, 0},
		{"a stale read", make1().write(0, 2, 100, 110).op(fresh, 1, 1, 111, 112), []Rule{Stale, Order}, 0},
		{"a stale read that Redis has not validated", make1().write(0, 2, 100, 110).op(fresh, 1, 1, 111, 112, history.Unvalidated), []Rule{Stale}, 0},
		{"back before the acknowledgement", make1().write(0, 2, 100, 200).op(fresh, 1, 2, 110, 120).op(fresh, 1, 1, 130, 140), []Rule{Back, Order}, 0},
		{"back, but not validated", make1().write(0, 2, 100, 200).op(fresh, 1, 2, 110, 120, history.Unvalidated).op(fresh, 1, 1, 130, 140), nil, 0},
		{"from the future", make1().op(fresh, 1, 2, 10, 20).write(0, 2, 100, 200), []Rule{Future, Order}, 0},
		{"a version of nobody", make1().op(fresh, 1, 2, 10, 20), []Rule{Future, Order}, 0},
		{"a version of one who was killed", make1().op(history.Begin, 0, 0, 5, 0).op(fresh, 1, 2, 10, 20), nil, 0},
		{"a row that is not there", make1().op(fresh, 1, 0, 10, 20), []Rule{Stale, Order}, 0},
		{"memory, within the bound", make1().write(0, 2, 100, 110).op(get, 1, 1, 2110, 2111), nil, 0},
		{"memory, beyond it", make1().write(0, 2, 100, 110).op(get, 1, 1, 2111, 2112), []Rule{Bound}, 0},
		{"memory of the process that wrote", make1().write(0, 2, 100, 110).op(get, 0, 1, 111, 112), []Rule{Own}, 0},
		{"an invalidation by one who has not written", make1().op(history.Begin, 0, 0, 100, 0).op(history.Commit, 0, 2, 100, 110).
			op(history.Invalidate, 1, 0, 120, 130).op(get, 1, 1, 131, 132).op(fresh, 2, 1, 131, 132),
			[]Rule{Own, Stale, Order}, 0},
		{"one that began before the commit says nothing", make1().op(history.Begin, 0, 0, 100, 0).op(history.Commit, 0, 2, 100, 110).
			op(history.Invalidate, 1, 0, 105, 130).op(get, 1, 1, 131, 132).op(fresh, 2, 1, 131, 132), nil, 0},
		{"one that failed says nothing", make1().op(history.Begin, 0, 0, 100, 0).op(history.Commit, 0, 2, 100, 110).
			op(history.Invalidate, 1, 0, 120, 130, history.Failed).op(get, 1, 1, 131, 132).op(fresh, 2, 1, 131, 132),
			nil, 0},
		{"of all keys: the bound", make1().op(history.Begin, 0, 0, 100, 0).op(history.Commit, 0, 2, 100, 110).
			op(history.InvalidateAll, 1, 0, 120, 130).op(fresh, 2, 1, 131, 132).op(get, 2, 1, 2130, 2131).op(get, 2, 1,
			2131, 2132), []Rule{Bound}, 0},
		{"lost by a failover", failover(make1().write(0, 2, 100, 110).op(fresh, 1, 1, 300, 301).op(get, 0, 1, 300, 301).op(get, 1, 1, 4000, 4001)), nil, 3},
		{"lost, and served for too long", failover(make1().write(0, 2, 100, 110).op(fresh, 1, 1, 5111, 5112)), []Rule{Lost}, 1},
		{"back, by a failover", failover(make1().write(0, 2, 100, 1000).op(fresh, 1, 2, 110, 120).op(fresh, 1, 1, 300, 301)), nil, 1},
		{"a failover excuses only what was acknowledged about then", failover(make1().write(0, 2, 10, 20).op(fresh, 1, 1, 300, 301)), []Rule{Stale, Order}, 0},
		{"a token", make1().write(0, 2, 100, 110).after(1, 1, 111, 112, 2, 110), []Rule{Token}, 0},
		{"a token, and the version that it asks for", make1().write(0, 2, 100, 110).after(1, 2, 111, 112, 2, 110), nil, 0},
		{"a token of an earlier write", make1().write(0, 2, 10, 20).write(0, 3, 100, 110).after(1, 2, 111, 112, 2, 20), nil, 0},
		{"a token of an earlier write, beyond the bound", make1().write(0, 2, 10, 20).write(0, 3, 100, 110).after(1, 2, 2111, 2112, 2, 20), []Rule{Bound}, 0},
		{"a token of a group", make1().commit(2, 100, 110).grouped(0, 1, 111, 120).after(1, 1, 121, 122, 2, 120), []Rule{Token}, 0},
		{"a token whose delete a failover has lost", failover(make1().write(0, 2, 100, 110).after(1, 1, 300, 301, 2, 110)), nil, 1},
		{"the same, and a later write", failover(make1().write(0, 2, 100, 110).write(0, 3, 250, 260).after(1, 1, 300, 301, 2, 110)), nil, 1},
		{"the same, and an earlier write", failover(make1().write(0, 2, 50, 60).write(0, 3, 100, 110).after(1, 1, 300, 301, 3, 110)), []Rule{Token}, 0},
		{"a group", make1().commit(2, 100, 110).grouped(0, 1, 111, 120).op(fresh, 1, 1, 121, 122), []Rule{Stale, Order}, 0},
		{"a group of the value, from which the row has moved", make1().commit(2, 100, 110).grouped(0, 11, 111, 120).op(fresh, 1, 1, 121, 122), []Rule{Stale, Order}, 0},
		{"a group to which the row has moved says nothing", make1().commit(2, 100, 110).grouped(0, 10, 111, 120).op(fresh, 1, 1, 121, 122), nil, 0},
		{"another group says nothing", make1().commit(2, 100, 110).grouped(0, 2, 111, 120).op(fresh, 1, 1, 121, 122), nil, 0},
		{"a group that failed says nothing", make1().commit(2, 100, 110).grouped(0, 1, 111, 120, history.Failed).op(fresh, 1, 1, 121, 122), nil, 0},
		{"a group before the commit says nothing", make1().commit(2, 100, 110).grouped(0, 1, 105, 120).op(fresh, 1, 1, 121, 122), nil, 0},
		{"a read beside a group", make1().commit(2, 100, 110).grouped(0, 1, 111, 120).op(fresh, 1, 1, 119, 122), nil, 0},
		{"a group outdates no version that left it, however old", make1().commit(2, 100, 110).commit(3, 120, 130).grouped(0, 10, 131, 140).
			op(fresh, 1, 1, 141, 142), nil, 0},
		{"a group, and an older version in it", make1().commit(2, 100, 110).commit(3, 120, 130).grouped(0, 11, 131, 140).
			op(fresh, 1, 1, 141, 142), []Rule{Stale, Order}, 0},
		{"back, after a group that says nothing", make1().commit(2, 100, 110).grouped(0, 10, 111, 120).op(fresh, 1, 2, 121, 122).
			op(fresh, 1, 1, 123, 124), []Rule{Back, Order}, 0},
		{"memory of the process that invalidated a group", make1().commit(2, 100, 110).grouped(0, 11, 111, 120).
			op(get, 0, 1, 121, 122).op(get, 1, 1, 121, 122), []Rule{Own}, 0},
		{"memory beyond the bound, by a group", make1().commit(2, 100, 110).grouped(0, 11, 111, 120).
			op(get, 1, 1, 2120, 2121).op(get, 1, 1, 2121, 2122), []Rule{Bound}, 0},
		{"a group lost by a failover", failover(make1().commit(2, 100, 110).grouped(0, 11, 111, 120).op(fresh, 1, 1, 300, 301)), nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Run(c.made.in)
			got, want := rules(r), slices.Clone(c.want)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) || r.LostByFailover != c.lost || r.Unchecked != 0 {
				t.Errorf("found %q and %d lost, want %q and %d", got, r.LostByFailover, want, c.lost)
			}
		})
	}
}

// An operation may end late by the time that its process was suspended.
func TestLateOperations(t *testing.T) {
	m := make1().op(history.Get, 1, 1, 100, 700).op(history.Get, 2, 1, 100, 700).op(history.Get, 2, 1, 100, 500)
	for i := range m.in.Ops {
		m.in.Ops[i].Timeout = 300_000
	}
	m.in.Suspended = []Suspension{{Process: 1, Window: Window{0, 300 * ms}}}
	if r := Run(m.in); r.Late != 1 || r.Violations[0].Op.Process != 2 {
		t.Errorf("%+v", r)
	}
}

func TestStaleness(t *testing.T) {
	m := make1().write(0, 2, 100, 110).op(history.Get, 1, 1, 1110, 1111)
	for range 98 {
		m.op(history.Get, 1, 2, 1200, 1201)
	}
	m.op(history.Get, 1, 1, 120, 121)
	r := Run(m.in)
	if r.Worst != time.Second || r.P99 != 10*time.Millisecond || r.StaleReads != 2 || r.Reads != 100 {
		t.Errorf("%+v", r)
	}
}

// simulate returns the history of a correct register with several keys, and groups that follow from
// the versions.
func simulate(r *rand.Rand, n int) Input {
	m := make1()
	m.in.Groups = func(key uint32, version int64) []uint32 { return []uint32{10*key + uint32(version%3)} }
	version := map[uint32]int64{}
	for i := range n {
		at := int64(i) * ms
		key := uint32(r.IntN(3))
		before, after := r.Int64N(20*ms), r.Int64N(20*ms)
		op := history.Op{Process: i % 4, Goroutine: uint16(i), Key: key, Start: at - before, End: at + after}
		if version[key] == 0 {
			version[key] = 1
		}
		if r.IntN(10) > 0 {
			op.Kind, op.Version = history.Fresh, version[key]
			m.in.Ops = append(m.in.Ops, op)
			continue
		}
		version[key]++
		begin, commit, ack := op, op, op
		begin.Kind, begin.End = history.Begin, 0
		commit.Kind, commit.Version, commit.End = history.Commit, version[key], at
		ack.Kind, ack.Start = history.Invalidate, at
		if r.IntN(2) == 0 {
			ack.Kind, ack.Key = history.InvalidateGroup, m.in.Groups(key, version[key]-int64(r.IntN(2)))[0]
		}
		m.in.Ops = append(m.in.Ops, begin, commit)
		if r.IntN(10) > 0 {
			m.in.Ops = append(m.in.Ops, ack)
		}
	}
	m.in.Began = -1000 * ms
	return m.in
}

// A history of a correct register passes. If one of its reads is changed, the rules and porcupine
// agree, although they work differently.
func TestRulesAgreeWithPorcupine(t *testing.T) {
	found := 0
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		in := simulate(r, 3000)
		if rep := Run(in); len(rep.Violations) != 0 || rep.Unchecked != 0 {
			t.Fatalf("seed %d: a correct register: %v", seed, rep.Violations)
		}
		for {
			op := &in.Ops[r.IntN(len(in.Ops))]
			if op.Kind == history.Fresh {
				op.Version = max(1, op.Version+int64(r.IntN(7)-3))
				break
			}
		}
		rep := Run(in)
		order := slices.Contains(rules(rep), Order)
		others := slices.ContainsFunc(rep.Violations, func(v Violation) bool { return v.Rule != Order })
		if order && !others || rep.Unchecked != 0 {
			t.Errorf("seed %d: %v", seed, rep.Violations)
		}
		if order {
			found++
		}
	}
	if found < 3 {
		t.Errorf("porcupine finds %d of 10 changed histories, want at least 3", found)
	}
}
