// Package source calls the load function of a loader: within the limits of the database, with a
// time-out, panics caught, and one call of a key at a time where no lease sees to that. It
// remembers which keys have failed to load a moment ago.
//
// It knows keys by their texts, and values as any: a loader's types are a matter of its Query.
package source

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
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
func NotAttempted(n int, err error) []Row {
	return slices.Repeat([]Row{{Err: err, NotAttempted: true}}, n)
}

// call runs query on a goroutine of its own, and waits until it returns or its time is up: no
// longer, for it may ignore its context. If ctx ends the load is told, and waited for.
func (s *Source) call(flight context.Context, texts []string, query Query, how Call) []Row {
	pass, err := s.acquire(flight, how.Background)
	if err != nil {
		return NotAttempted(len(texts), err)
	}
	outcome := limit.Failed // also if an error's own methods panic
	running := false        // then run leaves the place
	defer func() {
		if !running { // an Observer called runtime.Goexit
			pass.Leave()
		}
		pass.End(outcome)
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
	var a Returned
	defer func() { end(a.Err) }()
	started := time.Now() // before it reads anything: what is kept while Redis is down has its age from here
	running = true
	a = s.callQuery(ctx, pass, query)
	if errors.Is(a.Err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), fault.LoadTimeout) {
		a.setErr(errors.Join(fault.LoadTimeout, a.Err))
	}
	rows := s.rowsOf(len(texts), a, Row{TTL: own.ttlSet(), Took: time.Since(started), Began: started})
	outcome = s.verdict(flight, a.Err, rows)
	return rows
}

// run answers what query has returned when its time is up, at the latest. It leaves the place of
// the call when query has ended.
func (s *Source) callQuery(ctx context.Context, pass *limit.Pass, query Query) Returned {
	done := make(chan Returned, 1)
	go func() {
		var a Returned
		returned := false
		defer func() {
			if !returned {
				a = Returned{Err: s.options.Caught(recover())}
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
		return Returned{Err: fault.LoadTimeout}
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
func (s *Source) verdict(ctx context.Context, err error, rows []Row) limit.Verdict {
	switch succeeded := func(r Row) bool { return r.Err == nil }; {
	case slices.ContainsFunc(rows, succeeded), s.isNoRow(err):
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

// Query calls a load function for the keys of one call.
type Query func(ctx context.Context) Returned

// Answer is what a load function has returned.
type Returned struct {
	Replies []Reply // one for each key; none where Err is of a call that has returned nothing
	Unasked int     // values for keys that it was not asked for
	Err     error
}

// Reply is what an Answer says of one key.
type Reply struct {
	Value any // a pointer to one of the loader's type
	Found bool
	Err   error // why there is none: the key's own, or that of the whole call
	Own   bool  // the key's own
}

// fail makes err the error of the call, and of the keys that have failed with it.
func (a *Returned) setErr(err error) {
	a.Err = err
	for i := range a.Replies {
		if r := &a.Replies[i]; r.Err != nil && !r.Own {
			r.Err = err
		}
	}
}

// sort gives each of n keys what the answer has for it: a value, nothing, or an error; and else
// what all have of the call. A key of which a load that failed says nothing has failed too: only a
// load without an error says by its silence that there is no such row.
func (s *Source) rowsOf(n int, a Returned, call Row) []Row {
	rows := make([]Row, n)
	var noRows error // what all have of a batch that says there is no row
	failed := 0
	for i := range rows {
		reply := Reply{Err: a.Err}
		if len(a.Replies) == n {
			reply = a.Replies[i]
		}
		rows[i] = call
		switch r := &rows[i]; {
		case reply.Err == nil && reply.Found:
			r.Value = reply.Value
		case reply.Err == nil, s.isNoRow(reply.Err) && (!s.options.Batch || reply.Own):
			r.Null = true
		case s.isNoRow(reply.Err): // of a whole batch: a caller must not take it for the absence of its row
			if noRows == nil {
				noRows = errors.New("the batch load failed: " + reply.Err.Error())
			}
			r.Err = noRows
			failed++
		default:
			r.Err, r.NotAttempted = reply.Err, errors.Is(reply.Err, fault.Unavailable) || errors.Is(reply.Err, fault.LoadCycle) // of another loader, which this one asks
			failed++
		}
	}
	s.LoadErrors.Add(int64(failed))
	s.Unasked.Add(int64(a.Unasked))
	if failed < n {
		s.Pace.observe(call.Took)
	}
	return rows
}

// noRow tells whether a load has said that there is no such row. A panic never says so, whatever it
// was called with.
func (s *Source) isNoRow(err error) bool {
	if err == nil || s.options.Panicked(err) {
		return false
	}
	return errors.Is(err, fault.NotFound) || errors.Is(err, sql.ErrNoRows) ||
		s.options.NotFound != nil && s.options.NotFound(err)
}

// Pace is about how long the loads of a loader take.
type Pace struct{ nanos atomic.Int64 }

// observe takes one load into account: an exponential moving average, which needs no exact sum, so
// that a lost update is no harm.
func (p *Pace) observe(took time.Duration) {
	old := p.nanos.Load()
	if old == 0 {
		old = int64(took)
	}
	p.nanos.Store(old + (int64(took)-old)/8)
}

// Mean is about how long they take; 0 if that is not known.
func (p *Pace) Mean() time.Duration { return time.Duration(p.nanos.Load()) }

// Pause is how long to wait before looking again for the result of another's load, after having
// waited for so long. A waiter does not know when that load began, so it looks from the start, but
// most often near the time that such a load takes: some five times before, some ten times around
// it, and if the load is longer, each tenth of what has been waited. With a quarter of jitter, so
// that waiters do not ask in step.
func (p *Pace) Pause(waited time.Duration) time.Duration {
	const unknown = 50 * time.Millisecond
	expected := time.Duration(cmp.Or(p.nanos.Load(), int64(unknown)))
	var gap time.Duration
	switch {
	case waited < expected*7/10:
		gap = min(expected/6, expected*3/4-waited)
	case waited < expected*13/10:
		gap = expected / 20
	default:
		gap = waited / 10
	}
	gap = min(max(gap, time.Millisecond), 100*time.Millisecond)
	return gap*3/4 + rand.N(gap/2)
}
