package source

import (
	"context"
	"database/sql"
	"errors"

	"github.com/cacheaside/cacheaside/internal/fault"
)

// Query calls a load function for the keys of one call.
type Query func(ctx context.Context) Answer

// Answer is what a load function has returned.
type Answer struct {
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
func (a *Answer) fail(err error) {
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
func (s *Source) sort(n int, a Answer, call Row) []Row {
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
		case reply.Err == nil, s.noRow(reply.Err) && (!s.options.Batch || reply.Own):
			r.Null = true
		case s.noRow(reply.Err): // of a whole batch: a caller must not take it for the absence of its row
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
func (s *Source) noRow(err error) bool {
	if err == nil || s.options.Panicked(err) {
		return false
	}
	return errors.Is(err, fault.NotFound) || errors.Is(err, sql.ErrNoRows) ||
		s.options.NotFound != nil && s.options.NotFound(err)
}
