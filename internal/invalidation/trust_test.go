package invalidation

import (
	"testing"
	"time"
)

type trustOnly struct{ until time.Time }

func (*trustOnly) Forget(uint64)                  {}
func (*trustOnly) Clear(int)                      {}
func (*trustOnly) Void(int)                       {}
func (t *trustOnly) Trust(_ int, until time.Time) { t.until = until }

// A poll that was under way for long says how it was when it was sent, so trust lasts from then.
func TestTrustLastsFromTheSendingOfAPoll(t *testing.T) {
	m := &trustOnly{}
	tr := &track{bound: time.Hour, memory: m}
	tr.subscribed(1)
	sent := time.Now().Add(-50 * time.Minute)
	tr.endPoll(tr.beginPoll(sent), 0)
	if want := sent.Add(time.Hour); !m.until.Equal(want) {
		t.Errorf("trusted for %v, want %v", time.Until(m.until), time.Until(want))
	}
	sent = sent.Add(10 * time.Minute)
	q := tr.beginPoll(sent)
	tr.received(1, position{0, 7})
	tr.endPoll(q, 7)
	if want := sent.Add(time.Hour); !m.until.Equal(want) {
		t.Errorf("then trusted for %v, want %v", time.Until(m.until), time.Until(want))
	}
}

// Confirmed is ConfirmedAt without the time.
func (b *Bus) Confirmed(rng uint8) bool {
	_, confirmed := b.ConfirmedAt(rng)
	return confirmed
}
