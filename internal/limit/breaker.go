package limit

import (
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Figures that a breaker decides by.
const (
	minCalls     = 20 // calls of which it takes no notice
	window       = 10 * time.Second
	bucketPeriod = time.Second // by which it forgets
)

// Verdict is what a call has come to.
type Verdict uint8

// The verdicts.
const (
	Failed    Verdict = iota // it counts against the database
	Succeeded                // the database has answered
	Stopped                  // it says nothing about the database
)

// errors that tell gobreaker the verdict.
var (
	errFailed  = errors.New("failed")
	errStopped = errors.New("stopped")
)

func (v Verdict) err() error {
	return [...]error{Failed: errFailed, Succeeded: nil, Stopped: errStopped}[v]
}

// Breaker is a circuit breaker: closed, it lets calls through; when the share of those that fail is
// too high it opens, and lets none through; after a while, half open, it lets one through, by which
// it closes or opens again. A nil Breaker lets all through.
//
// It is gobreaker's, used so that a call is counted when it ends. gobreaker itself counts a call by
// when it was allowed: those that hang for as long as it looks back, which is how a database dies,
// would not count at all; and one that waits in a queue would hold the place of the one that tries.
// So a call that was let through while it is closed is not announced to gobreaker before its end,
// and only if it was not open meanwhile.
type Breaker struct {
	mu      sync.Mutex
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	epoch   uint64 // one more at each change of its state
	probing bool   // the one call that tries is under way
}

// NewBreaker makes a Breaker that opens when the share at of all calls has failed, for the time d;
// nil if at is negative. tell, which may be nil, is told when it opens and closes: quickly, for
// calls wait for that.
func NewBreaker(at float64, d time.Duration, onChange func(open bool)) *Breaker {
	if at < 0 {
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
			return ended >= minCalls && float64(c.TotalFailures)/float64(ended) >= at
		},
		OnStateChange: func(_ string, from, to gobreaker.State) { // b.mu is locked
			b.epoch++
			if onChange != nil && (from == gobreaker.StateClosed || to == gobreaker.StateClosed) { // not of each try
				onChange(to != gobreaker.StateClosed)
			}
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errStopped) },
	})
	return b
}

// Check tells whether a call would be let through now.
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

// ticket is a call that was let through.
type ticket struct {
	epoch uint64
	probe func(error) // of the one that tries, while the breaker is half open
}

// begin lets a call through, which is to begin now.
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

// end counts a call that was let through. One from before the last change of state says nothing of
// now.
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
		if done, err := b.circuit.Allow(); err == nil { // it is closed
			done(v.err())
		}
	}
}
