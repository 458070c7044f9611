package limitedlog

import (
	"sync"
	"time"
)

// Alarm keeps what fails, and says when to tell of it: once, until it works again. The zero value
// tells of everything that fails, when it first does. An Alarm is safe for concurrent use.
type Alarm struct {
	After    time.Duration // for how long something must have failed to be told
	Together bool          // what fails at a time is told once, until all of it is over
	Most     int           // of how much it knows that it fails; 0: of everything

	mu      sync.Mutex
	failing map[string]*Failure
	told    bool // of what fails together
}

// Failure is something that has failed since it last worked.
type Failure struct {
	Since, Last time.Time
	Times       int
	Err         error // the last one
	told        bool
}

// Failed notes that something has failed. It returns how often, since when, and whether to tell of
// it now. Of what it does not keep, since it knows of Most already, it tells nothing.
func (a *Alarm) Failed(what string, err error) (f Failure, tell bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	of := a.failing[what]
	if of == nil {
		if a.Most > 0 && len(a.failing) >= a.Most {
			return Failure{Since: now, Last: now, Times: 1, Err: err}, false
		}
		of = &Failure{Since: now}
		if a.failing == nil {
			a.failing = make(map[string]*Failure)
		}
		a.failing[what] = of
	}
	of.Last, of.Err = now, err
	of.Times++
	told := &of.told
	if a.Together {
		told = &a.told
	}
	if !*told && now.Sub(of.Since) >= a.After {
		*told, tell = true, true
	}
	return *of, tell
}

// Works notes that something works. It returns how it has failed before, and whether to tell that
// it is over: that it failed was told and, of what is told together, nothing fails any more.
func (a *Alarm) Works(what string) (f Failure, over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.failing[what]
	if of == nil {
		return Failure{}, false
	}
	delete(a.failing, what)
	if !a.Together {
		return *of, of.told
	}
	over = a.told && len(a.failing) == 0
	a.told = a.told && !over
	return *of, over
}

// Sounds tells whether something fails that was told of, and whose end was not.
func (a *Alarm) Sounds() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.failing {
		if a.told || f.told {
			return true
		}
	}
	return false
}

// Forget leaves out what has not failed for so long. Nobody is to be told that it is over.
func (a *Alarm) Forget(idle time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for what, f := range a.failing {
		if time.Since(f.Last) >= idle {
			delete(a.failing, what)
		}
	}
	a.told = a.told && len(a.failing) > 0
}

// Longest returns what has failed for longest; "" if nothing fails.
func (a *Alarm) Longest() (what string, f Failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w, of := range a.failing {
		if what == "" || of.Since.Before(f.Since) {
			what, f = w, *of
		}
	}
	return what, f
}

// Teller calls a user's function with alerts, each on a goroutine of its own.
type Teller[A any] struct {
	To       func(A)             // nil: nobody
	Panicked func(recovered any) // is called where To has panicked, above its frames

	all sync.WaitGroup
}

// Tell tells of an alert, and does not wait for that.
func (t *Teller[A]) Tell(alert A) {
	if t.To == nil {
		return
	}
	t.all.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				t.Panicked(p)
			}
		}()
		t.To(alert)
	})
}

// Wait returns when all have been told.
func (t *Teller[A]) Wait() { t.all.Wait() }
