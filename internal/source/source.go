// Package source calls the load function of a loader. It enforces the limits of the database and
// a timeout, catches panics, and allows one call for a key at a time if no lease does so. It
// remembers which keys have failed to load a moment ago.
//
// It identifies keys by their texts, and values are any. Only a loader's Query knows the types.
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

// Options are the properties of a loader that a Source needs. All except NotFound and BadKey must
// be set.
type Options struct {
	Batch       bool          // one call is for many keys
	LoadTimeout time.Duration // of a call
	ErrorTTL    time.Duration // how long a failed load is remembered
	// reports whether an error means that there is no such row; nil: only errors of this module and
	// of database/sql do
	NotFound func(error) bool

	// reports whether an error is the fault of its key, in addition to fault.BadKey and refusesKey;
	// may be nil
	BadKey func(error) bool

	Admission limit.Admission // limits of the load function
	Life      context.Context

	Observe func(ctx context.Context, keys int) (observed context.Context, end func(error)) // observes a call
	Warn    func(message string, err error)
	// returns the error of a goroutine that panicked, or called runtime.Goexit if recovered is nil
	Caught   func(recovered any) error
	Panicked func(error) bool // reports whether an error is from Caught
}

// A Source calls the load function of a loader. It is safe for concurrent use.
type Source struct {
	Counters
	Failures *Failures
	Pace     Pace

	options     Options
	keys        keyedMutex
	lastFailure atomic.Pointer[string] // the text of the last load's error
}

// Counters are the counters of a Source: see the fields of cacheaside.Stats with these names.
type Counters struct{ Loads, LoadCalls, LoadErrors, LoadsLeft, Unasked, Unavailable atomic.Int64 }

// New returns a Source.
func New(o Options) *Source {
	return &Source{options: o, Failures: newFailures(o.ErrorTTL)}
}

// A Row is the result of a load for one key: a value, an absence, or an error.
type Row struct {
	Value any // pointer to a value of the loader's type; nil if there is none
	Null  bool
	Err   error

	TTL          time.Duration // set by SetTTL, or 0
	Took         time.Duration
	Began        time.Time
	NotAttempted bool // Err means that the database was not asked
}

// Call determines how a load function is called.
type Call struct {
	Begins     func() // if not nil, called just before the load function
	Waiting    func() // if not nil, called when the load begins to wait for other loads
	Background bool   // no caller waits, or the callers can be served a stale value
}

// Load calls query for the keys with these texts, and returns a Row for each. It caches nothing,
// and does not wait for other loads of the keys.
func (s *Source) Load(ctx context.Context, texts []string, query Query, call Call) (rows []Row) {
	defer func() {
		if p := recover(); p != nil { // methods of the error may panic
			rows = slices.Repeat([]Row{{Err: s.options.Caught(p)}}, len(texts))
		}
	}()
	return s.loadParts(ctx, part{query, 0, texts, time.Now()}, call)
}

// loadParts loads the keys of p. If one call for all of them fails because of a key, it loads each
// half separately, so that the key does not harm the others. It divides no further when
// LoadTimeout has passed.
func (s *Source) loadParts(ctx context.Context, p part, call Call) []Row {
	rows, again := s.call(ctx, p, call)
	if !again {
		return rows
	}
	call.Begins = nil // it is for rows that are read after the first call has begun
	half := len(p.texts) / 2
	first, second := p, p
	first.texts = p.texts[:half]
	second.texts, second.first = p.texts[half:], p.first+half
	return append(s.loadParts(ctx, first, call), s.loadParts(ctx, second, call)...)
}

// A part is some keys of a Load.
type part struct {
	query Query
	first int // index of the first key
	texts []string
	began time.Time // when Load was called
}

// LoadEntered is Load for keys that Enter has entered. It always leaves them.
func (s *Source) LoadEntered(ctx context.Context, texts []string, query Query, call Call) []Row {
	defer s.Leave(texts)
	return s.Load(ctx, texts, query, call)
}

// NotAttempted returns the rows of n keys for which the database was not asked.
func NotAttempted(n int, err error) []Row {
	return slices.Repeat([]Row{{Err: err, NotAttempted: true}}, n)
}

// call runs query on a separate goroutine, and waits until it returns or LoadTimeout has passed.
// It does not wait longer, because query may ignore its context. If flight ends, the context of
// query ends, but call still waits for query. again reports whether the keys should be loaded
// separately, because one of them has failed the whole call.
func (s *Source) call(flight context.Context, p part, call Call) (rows []Row, again bool) {
	pass, err := s.acquire(flight, call.Background)
	if err != nil {
		return NotAttempted(len(p.texts), err), false
	}
	outcome := limit.Failed // also if methods of the error panic
	running := false        // then callQuery leaves the place
	defer func() {
		if !running { // an Observer called runtime.Goexit
			pass.Leave()
		}
		pass.End(outcome)
	}()
	ctx, cancel := context.WithTimeoutCause(flight, s.options.LoadTimeout, fault.LoadTimeout)
	defer cancel()
	l := &load{ctx: ctx, pass: pass, waiting: call.Waiting, source: s, texts: p.texts}
	defer waits.end(l)
	ctx = context.WithValue(ctx, loadKey{}, l)

	s.Loads.Add(int64(len(p.texts)))
	s.LoadCalls.Add(1)
	if call.Begins != nil {
		call.Begins()
	}
	ctx, end := s.options.Observe(ctx, len(p.texts))
	var a Returned
	defer func() { end(a.Err) }()
	started := time.Now() // before the query reads anything: see fetch.Fetcher.keepWhileDown
	running = true
	a = s.callQuery(ctx, pass, p)
	if errors.Is(a.Err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), fault.LoadTimeout) {
		a.setErr(errors.Join(fault.LoadTimeout, a.Err))
	}
	again = len(p.texts) > 1 && a.failedWhole() && s.isBadKey(a.Err) && flight.Err() == nil &&
		time.Since(p.began) < s.options.LoadTimeout
	rows = s.rowsOf(len(p.texts), a, Row{TTL: l.ttlSet(), Took: time.Since(started), Began: started})
	outcome = s.verdict(flight, a.Err, rows)
	if !again {
		s.LoadErrors.Add(int64(failures(rows)))
	}
	return rows, again
}

// callQuery returns the result of query, or an error when LoadTimeout has passed. The call leaves
// its place when query has returned.
func (s *Source) callQuery(ctx context.Context, pass *limit.Pass, p part) Returned {
	done := make(chan Returned, 1)
	go func() {
		var a Returned
		returned := false
		defer func() {
			if !returned {
				a = Returned{Err: s.options.Caught(recover())}
				s.options.Warn("a load has panicked", a.Err)
			}
			pass.Leave() // not before query returns, even after the timeout
			done <- a
		}()
		a = p.query(ctx, p.first, p.first+len(p.texts))
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

// acquire waits until a call may be made, or returns the reason why it must not be made.
func (s *Source) acquire(ctx context.Context, background bool) (*limit.Pass, error) {
	pass, err := s.options.Admission.Acquire(ctx, limit.Call{Background: background, Within: passOf(ctx)})
	if refusal, ok := errors.AsType[limit.Refusal](err); ok {
		s.Unavailable.Add(1)
		err = fmt.Errorf("%w: %w", fault.Unavailable, refusal)
		if last := s.lastFailure.Load(); last != nil && errors.Is(refusal, limit.ErrOpen) {
			err = fmt.Errorf("%w; the last load that failed: %.200s", err, *last)
		}
	}
	if err == nil && s.options.Life.Err() != nil {
		// Close has ended another load, which freed this place, but not this one
		pass.Leave()
		pass.End(limit.Stopped)
		err = fault.Closed
	}
	return pass, err
}

// Broken reports whether the circuit breaker rejects calls.
func (s *Source) Broken() bool { return s.options.Admission.Breaker.Check() != nil }

// Idle reports whether a call could be made immediately, without delaying others.
func (s *Source) Idle() bool { return s.options.Admission.Idle() }

// verdict returns the outcome of a call for the circuit breaker. A call that was stopped and
// returned any error says nothing about the database. A call that was stopped and did not return
// before its timeout is a failure. Nor do errors that are the fault of their keys, or that repeat
// an earlier failure of another loader, say anything about the database.
func (s *Source) verdict(ctx context.Context, err error, rows []Row) limit.Verdict {
	switch succeeded := func(r Row) bool { return r.Err == nil }; {
	case slices.ContainsFunc(rows, succeeded), s.isNoRow(err):
		return limit.Succeeded
	case slices.ContainsFunc(rows, func(r Row) bool { return r.NotAttempted }):
		return limit.Stopped
	case ctx.Err() != nil && !errors.Is(err, fault.LoadTimeout):
		return limit.Stopped
	case !slices.ContainsFunc(rows,
		func(r Row) bool { return !s.isBadKey(r.Err) && !errors.Is(r.Err, fault.LoadFailed) }):
		return limit.Stopped
	default:
		text := err.Error()
		s.lastFailure.Store(&text)
		return limit.Failed
	}
}

// isBadKey reports whether err is the fault of a key. A panic or a timeout never is.
func (s *Source) isBadKey(err error) bool {
	if err == nil || s.options.Panicked(err) || errors.Is(err, fault.LoadTimeout) {
		return false
	}
	return errors.Is(err, fault.BadKey) || refusesKey(err) || s.options.BadKey != nil && s.options.BadKey(err)
}

// A Query calls a load function for the keys with the indexes from first to before end.
type Query func(ctx context.Context, first, end int) Returned

// Returned holds the results of a load function.
type Returned struct {
	Replies []Reply // one for each key; empty if the call failed without results
	Unasked int     // number of values for keys that were not in the call
	Err     error
}

// A Reply is the part of Returned for one key.
type Reply struct {
	Value any // pointer to a value of the loader's type
	Found bool
	Err   error // the error of the key, or of the whole call
	OfKey bool  // Err is of this key only
}

// failedWhole reports whether the call has failed, and returned nothing about single keys.
func (r *Returned) failedWhole() bool {
	return r.Err != nil && !slices.ContainsFunc(r.Replies, func(reply Reply) bool {
		return reply.OfKey ||
			reply.Err == nil
	})
}

// setErr sets the error of the call, and of the keys that have failed with it.
func (r *Returned) setErr(err error) {
	r.Err = err
	for i := range r.Replies {
		if reply := &r.Replies[i]; reply.Err != nil && !reply.OfKey {
			reply.Err = err
		}
	}
}

// rowsOf returns the rows of n keys: for each a value, an absence or an error, and the fields that
// call has for all. If the load failed, a key without a reply has failed too. If the load
// succeeded, a key without a reply has no row.
func (s *Source) rowsOf(n int, a Returned, call Row) []Row {
	rows := make([]Row, n)
	var noRows error // error of all keys of a batch that returned "no row" for the whole call
	for i := range rows {
		reply := Reply{Err: a.Err}
		if len(a.Replies) == n {
			reply = a.Replies[i]
		}
		rows[i] = call
		switch r := &rows[i]; {
		case reply.Err == nil && reply.Found:
			r.Value = reply.Value
		case reply.Err == nil, s.isNoRow(reply.Err) && (!s.options.Batch || reply.OfKey):
			r.Null = true
		case s.isNoRow(reply.Err): // of a whole batch: callers must not take it for the absence of their row
			if noRows == nil {
				noRows = errors.New("the batch load failed: " + reply.Err.Error())
			}
			r.Err = noRows
		default:
			// The error may be of another loader, which this load has read from.
			r.Err, r.NotAttempted = reply.Err, errors.Is(reply.Err, fault.Unavailable) ||
				errors.Is(reply.Err, fault.LoadCycle)
		}
	}
	s.Unasked.Add(int64(a.Unasked))
	if failures(rows) < n {
		s.Pace.observe(call.Took)
	}
	return rows
}

// failures returns how many rows could not be loaded.
func failures(rows []Row) (n int) {
	for i := range rows {
		if rows[i].Err != nil {
			n++
		}
	}
	return n
}

// isNoRow reports whether a load's error means that there is no such row. A panic never does.
func (s *Source) isNoRow(err error) bool {
	if err == nil || s.options.Panicked(err) {
		return false
	}
	return errors.Is(err, fault.NotFound) || errors.Is(err, sql.ErrNoRows) ||
		s.options.NotFound != nil && s.options.NotFound(err)
}

// A Pace estimates how long the loads of a loader take.
type Pace struct{ nanos atomic.Int64 }

// observe adds the duration of one load. It maintains an exponential moving average, so a lost
// update does no harm.
func (p *Pace) observe(took time.Duration) {
	old := p.nanos.Load()
	if old == 0 {
		old = int64(took)
	}
	p.nanos.Store(old + (int64(took)-old)/8)
}

// Mean returns the estimated duration of a load, or 0 if it is unknown.
func (p *Pace) Mean() time.Duration { return time.Duration(p.nanos.Load()) }

// Pause returns the pause before the next lookup of another load's result, after a wait of
// waited. The waiter does not know when that load began. So it polls about five times before the
// expected end of the load, about ten times near it, and after that with pauses of a tenth of the
// wait so far. A jitter of a quarter keeps waiters from polling at the same times.
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
