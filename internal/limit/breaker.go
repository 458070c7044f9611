package limit

import (
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Parameters of all breakers.
const (
	minCalls     = 20 // the breaker stays closed until this number of calls has ended
	window       = 10 * time.Second
	bucketPeriod = time.Second // the window moves in steps of this duration
)

// A Verdict is the outcome of a call.
type Verdict uint8

// The verdicts.
const (
	Failed    Verdict = iota // counts against the database
	Succeeded                // the database has replied
	Stopped                  // says nothing about the database
)

// The errors that pass a Verdict to gobreaker.
var (
	errFailed  = errors.New("failed")
	errStopped = errors.New("stopped")
)

func (v Verdict) err() error {
	return [...]error{Failed: errFailed, Succeeded: nil, Stopped: errStopped}[v]
}

// A Breaker is a circuit breaker. While it is closed, it allows all calls. When the share of
// failed calls is too high, it opens, and rejects all calls. After a while it is half open, and
// allows one call: the probe. Depending on the probe, it closes or opens again. A nil Breaker
// allows all calls.
//
// The implementation is gobreaker's, but calls are counted when they end. gobreaker counts a call
// at the time when it was allowed. Then calls that hang for longer than the window, which is how
// a database dies, would not count at all. And a call that waits in a queue would occupy the
// place of the probe. So a call that was allowed while the breaker was closed is reported to
// gobreaker only at its end, and only if the breaker has not changed its state since.
type Breaker struct {
	mu      sync.Mutex
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	epoch   uint64 // incremented at each change of state
	probing bool   // the probe is in progress
}

// NewBreaker returns a Breaker that opens for the duration d when this share of all calls has
// failed. It returns nil if share is negative. onChange, which may be nil, is called when the
// breaker opens or closes. It must return quickly, because calls wait for it.
func NewBreaker(share float64, d time.Duration, onChange func(open bool)) *Breaker {
	if share < 0 {
		return nil
	}
	b := &Breaker{}
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1,
		Interval:     window,
		BucketPeriod: bucketPeriod,
		Timeout:      d,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			ended := c.TotalSuccesses + c.TotalFailures
			return ended >= minCalls && float64(c.TotalFailures)/float64(ended) >= share
		},
		OnStateChange: func(_ string, from, to gobreaker.State) { // b.mu is locked
			b.epoch++
			if onChange != nil && (from == gobreaker.StateClosed || to == gobreaker.StateClosed) {
				// not between open and half open
				onChange(to != gobreaker.StateClosed)
			}
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errStopped) },
	})
	return b
}

// Check returns ErrOpen if a call would be rejected now.
func (b *Breaker) Check() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.check(b.circuit.State())
}

func (b *Breaker) check(s gobreaker.State) error {
	if s == gobreaker.StateOpen || s == gobreaker.StateHalfOpen && b.probing {
		return ErrOpen
	}
	return nil
}

// A ticket is a call that was allowed.
type ticket struct {
	epoch uint64
	probe func(error) // reports the outcome of the probe; nil for other calls
}

// begin allows or rejects a call that is about to start.
func (b *Breaker) begin() (ticket, error) {
	if b == nil {
		return ticket{}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.circuit.State()
	if err := b.check(state); err != nil {
		return ticket{}, err
	}
	t := ticket{epoch: b.epoch}
	if state == gobreaker.StateHalfOpen {
		done, err := b.circuit.Allow()
		if err != nil {
			return ticket{}, ErrOpen
		}
		t.probe, b.probing = done, true
	}
	return t, nil
}

// end counts the outcome of a call that was allowed. It ignores a call from before the last
// change of state.
func (b *Breaker) end(t ticket, v Verdict) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case t.probe != nil:
		b.probing = false
		t.probe(v.err())
	case t.epoch != b.epoch, v == Stopped:
	default:
		if done, err := b.circuit.Allow(); err == nil { // the breaker is closed
			done(v.err())
		}
	}
}
