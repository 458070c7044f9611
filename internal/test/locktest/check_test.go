package locktest

import (
	"testing"
	"time"
)

// A history without lost locks is valid.
func TestHistoryWithoutLosses(t *testing.T) {
	var events []Event
	for i := range int64(30) {
		e := Event{Name: "a", Op: "acquire", Lease: uint64(i + 1), Token: i + 1, Call: 10 * i, Return: 10*i + 1}
		events = append(events, e)
		e.Op, e.Call, e.Return = "release", 10*i+2, 10*i+3
		events = append(events, e)
	}
	check(t, Exclusive, events, time.Millisecond)
}

// The models reject a writer beside a reader, a permit too many, and a token that does not grow.
func TestModels(t *testing.T) {
	type grant struct {
		lease  uint64 // negative tokens are releases
		token  int64
		shared bool
	}
	for name, c := range map[string]struct {
		kind   Kind
		grants []grant
		ok     bool
	}{
		"readers":             {ReadWrite, []grant{{1, 1, true}, {2, 2, true}, {3, 3, true}}, true},
		"writer after reader": {ReadWrite, []grant{{1, 1, true}, {1, -1, true}, {2, 2, false}}, true},
		"writer with reader":  {ReadWrite, []grant{{1, 1, true}, {2, 2, false}}, false},
		"reader with writer":  {ReadWrite, []grant{{1, 1, false}, {2, 2, true}}, false},
		"two writers":         {ReadWrite, []grant{{1, 1, false}, {2, 2, false}}, false},
		"old token":           {ReadWrite, []grant{{1, 2, true}, {2, 1, true}}, false},
		"two permits":         {Semaphore, []grant{{1, 1, true}, {2, 2, true}, {1, -1, true}, {3, 3, true}}, true},
		"three permits":       {Semaphore, []grant{{1, 1, true}, {2, 2, true}, {3, 3, true}}, false},
		"two holders":         {Exclusive, []grant{{1, 1, false}, {2, 2, false}}, false},
		"unknown holder":      {Semaphore, []grant{{1, 1, true}, {2, -1, true}}, false},
	} {
		var state any = holding{}
		ok := true
		for _, g := range c.grants {
			e := Event{Op: "acquire", Lease: g.lease, Token: g.token, Shared: g.shared}
			if g.token < 0 {
				e.Op = "release"
			}
			var legal bool
			legal, state = c.kind.step(state, e, nil)
			ok = ok && legal
		}
		if ok != c.ok {
			t.Errorf("%s: %v", name, ok)
		}
	}
}
