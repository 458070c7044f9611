package fetch

import (
	"slices"
	"sync"
)

// remainder is the rounds of a batch whose turn to be leased has not come. A nil one has none.
type remainder struct {
	of     *batch
	rounds []*Round

	mu           sync.Mutex
	begun, ended bool
}

// left is what remains while a batch loads. Not so in the background, where nobody waits for it.
func (b *batch) left() *remainder {
	if b.background {
		return nil
	}
	rounds := slices.Concat(at(b.open, toLook), at(b.open, toTake))
	if len(rounds) == 0 {
		return nil
	}
	return &remainder{of: b, rounds: rounds}
}

// goOn lets the rest go on by itself, as a load of the batch begins to wait for others: for one of
// the rest, maybe, or of another batch whose loads wait for the rest of this one.
func (m *remainder) goOn() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun || m.ended {
		return
	}
	m.begun = true
	b := m.of
	part := &batch{l: b.l, ctx: b.ctx, flight: b.flight, rounds: m.rounds, open: slices.Clone(m.rounds), refresh: b.refresh}
	b.parts.Go(part.run)
}

// end is called when the loads of the batch have ended.
func (m *remainder) end() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	if !m.begun {
		return
	}
	gone := make(map[*Round]bool, len(m.rounds))
	for _, r := range m.rounds {
		gone[r] = true
	}
	goes := func(r *Round) bool { return gone[r] }
	m.of.rounds = slices.DeleteFunc(slices.Clone(m.of.rounds), goes)
	m.of.open = slices.DeleteFunc(slices.Clone(m.of.open), goes)
}
