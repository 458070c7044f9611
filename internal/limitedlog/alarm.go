package limitedlog

import (
	"sync"
	"time"
)

// An Alarm records operations that fail, and decides when to report that: once, until the
// operation works again. The zero value reports each operation at its first failure. An Alarm is
// safe for concurrent use.
type Alarm struct {
	After    time.Duration // how long an operation must have failed before it is reported
	Together bool          // report concurrent failures once, until all have ended
	Most     int           // the maximum number of failing operations that it records; 0 means no limit

	mu       sync.Mutex
	failing  map[string]*Failure
	reported bool // with Together: a failure was reported
}

// A Failure describes an operation that has failed since it last worked.
type Failure struct {
	Since, Last time.Time
	Times       int
	Err         error // the last error
	reported    bool  // without Together
}

// Failed records a failure of what. It returns all its failures since it last worked, and whether
// to report them now. It does not record, or report, an operation beyond the limit Most.
func (a *Alarm) Failed(operation string, err error) (f Failure, report bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	failure := a.failing[operation]
	if failure == nil {
		if a.Most > 0 && len(a.failing) >= a.Most {
			return Failure{Since: now, Last: now, Times: 1, Err: err}, false
		}
		failure = &Failure{Since: now}
		if a.failing == nil {
			a.failing = make(map[string]*Failure)
		}
		a.failing[operation] = failure
	}
	failure.Last, failure.Err = now, err
	failure.Times++
	reported := &failure.reported
	if a.Together {
		reported = &a.reported
	}
	if !*reported && now.Sub(failure.Since) >= a.After {
		*reported, report = true, true
	}
	return *failure, report
}

// Works records that what works. It returns its earlier failures, and whether to report the
// recovery. A recovery is reported if the failure was reported and, with Together, nothing fails
// any more.
func (a *Alarm) Works(operation string) (f Failure, recovered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	failure := a.failing[operation]
	if failure == nil {
		return Failure{}, false
	}
	delete(a.failing, operation)
	if !a.Together {
		return *failure, failure.reported
	}
	recovered = a.reported && len(a.failing) == 0
	a.reported = a.reported && !recovered
	return *failure, recovered
}

// Sounds reports whether a reported failure has not ended.
func (a *Alarm) Sounds() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.failing {
		if a.reported || f.reported {
			return true
		}
	}
	return false
}

// Forget removes operations that have not failed for the duration idle. Their recovery is not
// reported.
func (a *Alarm) Forget(idle time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for operation, f := range a.failing {
		if time.Since(f.Last) >= idle {
			delete(a.failing, operation)
		}
	}
	a.reported = a.reported && len(a.failing) > 0
}

// Longest returns the operation that has failed for the longest time, or "" if none fails.
func (a *Alarm) Longest() (operation string, f Failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w, failure := range a.failing {
		if operation == "" || failure.Since.Before(f.Since) {
			operation, f = w, *failure
		}
	}
	return operation, f
}

// A Notifier calls a user's function with alerts, each on a separate goroutine.
type Notifier[A any] struct {
	To       func(A)             // receives the alerts; may be nil
	Panicked func(recovered any) // is called when To has panicked, with its frames on the stack

	all sync.WaitGroup
}

// Notify calls To with alert, and does not wait for it.
func (n *Notifier[A]) Notify(alert A) {
	if n.To == nil {
		return
	}
	n.all.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				n.Panicked(p)
			}
		}()
		n.To(alert)
	})
}

// Wait waits for all calls of To.
func (n *Notifier[A]) Wait() { n.all.Wait() }
