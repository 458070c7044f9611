// Package source calls the load function of a loader: within the limits of the database, with a
// time-out, panics caught, and one call of a key at a time where no lease sees to that. It
// remembers which keys have failed to load a moment ago.
//
// It knows keys by their texts, and values as any: a loader's types are a matter of its Query.
package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/limit"
)

// Options are what a Source is told of its loader. All but NotFound must be set.
type Options struct {
	Batch       bool             // one call is for many keys
	LoadTimeout time.Duration    // of a call
	ErrorTTL    time.Duration    // how long a failed load is remembered
	NotFound    func(error) bool // whether an error says that there is no such row; nil: no others do than those of this module and of database/sql

	Admission limit.Admission // in front of the load function
	Life      context.Context

	Observe  func(ctx context.Context, keys int) (own context.Context, end func(error)) // a call
	Warn     func(what string, err error)
	Caught   func(recovered any) error // the error of a goroutine that unwinds; nil is for runtime.Goexit
	Panicked func(error) bool          // whether an error is of Caught
}

// Source is a loader's load function, and what stands around it. It is safe for concurrent use.
type Source struct {
	Counters
	Failures *Failures
	Pace     Pace

	options     Options
	keys        keyedMutex
	lastFailure atomic.Pointer[string] // the text of a load's error
}

// Counters are what a Source counts: see the fields of cacheaside.Stats of these names.
type Counters struct{ Loads, LoadCalls, LoadErrors, LoadsLeft, Unasked, Unavailable atomic.Int64 }

// New makes a Source.
func New(o Options) *Source {
	return &Source{options: o, Failures: newFailures(o.ErrorTTL)}
}

// Row is what a load has come to for one key: a value, that there is none, or an error.
type Row struct {
	Value any // a pointer to one of the loader's type; nil where there is none
	Null  bool
	Err   error

	TTL          time.Duration // as SetTTL has it, or 0
	Took         time.Duration
	Began        time.Time
	NotAttempted bool // Err is that the database was not asked
}

// Call is how a load function is called.
type Call struct {
	Begins     func() // called just before, unless nil
	Waiting    func() // called when it begins to wait for other loads, unless nil
	Background bool   // nobody waits for it, or its callers have something to show
}

// Load calls query for keys of these texts, and answers for each. It caches nothing, and waits for
// no other load of them.
func (s *Source) Load(ctx context.Context, texts []string, query Query, how Call) (rows []Row) {
	defer func() {
		if p := recover(); p != nil { // an error's own methods may panic
			rows = slices.Repeat([]Row{{Err: s.options.Caught(p)}}, len(texts))
		}
	}()
	return s.call(ctx, texts, query, how)
}

// LoadEntered is Load of keys that Enter has let in. It lets them out again, whatever happens.
func (s *Source) LoadEntered(ctx context.Context, texts []string, query Query, how Call) []Row {
	defer s.Leave(texts)
	return s.Load(ctx, texts, query, how)
}

// NotMade are the rows of n keys for which the database was not asked.
func NotMade(n int, err error) []Row { return slices.Repeat([]Row{{Err: err, NotAttempted: true}}, n) }

// call runs query on a goroutine of its own, and waits until it returns or its time is up: no
// longer, for it may ignore its context. If ctx ends the load is told, and waited for.
func (s *Source) call(flight context.Context, texts []string, query Query, how Call) []Row {
	pass, err := s.acquire(flight, how.Background)
	if err != nil {
		return NotMade(len(texts), err)
	}
	verdict := limit.Failed // also if an error's own methods panic
	running := false        // then run leaves the place
	defer func() {
		if !running { // an Observer called runtime.Goexit
			pass.Leave()
		}
		pass.End(verdict)
	}()
	ctx, cancel := context.WithTimeoutCause(flight, s.options.LoadTimeout, fault.LoadTimeout)
	defer cancel()
	own := &load{ctx: ctx, pass: pass, waiting: how.Waiting, source: s, texts: texts}
	ctx = context.WithValue(ctx, loadKey{}, own)

	s.Loads.Add(int64(len(texts)))
	s.LoadCalls.Add(1)
	if how.Begins != nil {
		how.Begins()
	}
	ctx, end := s.options.Observe(ctx, len(texts))
	var a Answer
	defer func() { end(a.Err) }()
	started := time.Now() // before it reads anything: what is kept while Redis is down has its age from here
	running = true
	a = s.run(ctx, pass, query)
	if errors.Is(a.Err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), fault.LoadTimeout) {
		a.fail(errors.Join(fault.LoadTimeout, a.Err))
	}
	rows := s.sort(len(texts), a, Row{TTL: own.setTTL(), Took: time.Since(started), Began: started})
	verdict = s.judge(flight, a.Err, rows)
	return rows
}

// run answers what query has returned when its time is up, at the latest. It leaves the place of
// the call when query has ended.
func (s *Source) run(ctx context.Context, pass *limit.Pass, query Query) Answer {
	done := make(chan Answer, 1)
	go func() {
		var a Answer
		returned := false
		defer func() {
			if !returned {
				a = Answer{Err: s.options.Caught(recover())}
				s.options.Warn("a load has panicked", a.Err)
			}
			pass.Leave() // not before, even if nobody waits any more
			done <- a
		}()
		a = query(ctx)
		returned = true
	}()
	deadline := time.NewTimer(s.options.LoadTimeout)
	defer deadline.Stop()
	select {
	case a := <-done:
		return a
	case <-deadline.C:
		s.LoadsLeft.Add(1)
		s.options.Warn("a load ignores its context, and still runs after LoadTimeout", nil)
		return Answer{Err: fault.LoadTimeout}
	}
}

// acquire waits until a call may be made, or tells why it is not to be.
func (s *Source) acquire(ctx context.Context, background bool) (*limit.Pass, error) {
	pass, err := s.options.Admission.Acquire(ctx, limit.Call{Background: background, Within: passOf(ctx)})
	if refusal, ok := errors.AsType[limit.Refusal](err); ok {
		s.Unavailable.Add(1)
		err = fmt.Errorf("%w: %w", fault.Unavailable, refusal)
		if last := s.lastFailure.Load(); last != nil && errors.Is(refusal, limit.ErrOpen) {
			err = fmt.Errorf("%w; the last load that failed: %.200s", err, *last)
		}
	}
	if err == nil && s.options.Life.Err() != nil { // the place is that of a load that Close has stopped, before it stops this one
		pass.Leave()
		pass.End(limit.Stopped)
		err = fault.Closed
	}
	return pass, err
}

// Broken tells whether the circuit breaker lets no call through.
func (s *Source) Broken() bool { return s.options.Admission.Breaker.Check() != nil }

// Idle tells whether a call would be made at once, and take nothing from others.
func (s *Source) Idle() bool { return s.options.Admission.Idle() }

// judge tells the circuit breaker what a call has come to. A call that was stopped and says so, by
// whatever error, is nobody's fault; one that was stopped, and even so had not returned when its
// time was up, is a failure.
func (s *Source) judge(ctx context.Context, err error, rows []Row) limit.Verdict {
	switch answered := func(r Row) bool { return r.Err == nil }; {
	case slices.ContainsFunc(rows, answered), s.noRow(err):
		return limit.Succeeded
	case slices.ContainsFunc(rows, func(r Row) bool { return r.NotAttempted }):
		return limit.Stopped
	case ctx.Err() != nil && !errors.Is(err, fault.LoadTimeout):
		return limit.Stopped
	default:
		text := err.Error()
		s.lastFailure.Store(&text)
		return limit.Failed
	}
}
