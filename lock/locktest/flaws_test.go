package locktest

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/internal/holders"
)

// memory is a lock service in memory, and its driver, with a flaw.
type memory struct {
	flaw  flaw
	mu    sync.Mutex
	token int64
	held  map[string]*holder // by key
}

// holder is a lock that is held.
type holder struct {
	*memory
	key    string
	token  int64
	expiry time.Time
}

// A flaw is a mistake of a driver.
type flaw string

const (
	none       flaw = "nothing"
	shares     flaw = "it grants a lock that is held"
	oldTokens  flaw = "tokens do not grow"
	otherError flaw = "a lock that is held is another error than ErrHeld"
	deaf       flaw = "Acquire goes on when its context has ended"
	leaves     flaw = "a cancelled Acquire gets the lock later"
	stuck      flaw = "Release does not release"
	lies       flaw = "Extend does not extend"
	refuses    flaw = "Extend returns an error"
	overstates flaw = "Grant.TTL is longer than the service keeps the lock"
	steals     flaw = "Extend takes the lock from the next holder"
	frees      flaw = "Release releases the lock of the next holder"
	early      flaw = "locks expire too early"
	folds      flaw = "names are not case-sensitive"
)

// Flaws of locks of other kinds.
const (
	starves   flaw = "it adds readers while a writer waits"
	marks     flaw = "a writer that has left still excludes readers"
	crowds    flaw = "it ignores Request.Limit"
	mixes     flaw = "it ignores Request.Kind"
	anonymous flaw = "Inspect has no label"
	keeps     flaw = "Break does not break"
	breaksAny flaw = "Break ignores the token"
)

// flaws lists, for each test of the suite, the flaws that it detects. The inputs of BadInput are
// refused before a driver is called.
var flaws = map[string][]flaw{
	"Exclusive":       {shares, oldTokens},
	"Try":             {shares, otherError},
	"Wait":            {deaf},
	"CancelledWaiter": {leaves},
	"Released":        {stuck},
	"Watchdog":        {lies},
	"Fixed":           {overstates, oldTokens},
	"Expires":         {steals, frees, early, oldTokens},
	"Extend":          {refuses, lies},
	"MaxHold":         {stuck},
	"ContextEnds":     {shares},
	"Reentrant":       {shares, stuck},
	"OwnersJoin":      {shares, stuck},
	"Do":              {shares, stuck},
	"Names":           {folds},
	"Close":           {stuck},
	"ReadWrite":       {starves, crowds, oldTokens},
	"WriterLeaves":    {marks},
	"SharedExpires":   {overstates, oldTokens},
	"SharedExtended":  {lies, refuses},
	"Semaphore":       {crowds, mixes, oldTokens},
	"Inspect":         {anonymous, keeps, breaksAny},
	"AcquireAll":      {shares, stuck},
	"AcquireAllOrder": {shares},
	"AcquireAllLost":  {overstates, oldTokens},
	"Once":            {lies, stuck},
	"OnceAgain":       {lies},
	"BadInput":        nil,
}

// kinds are the tests of a driver.Extended.
var kinds = []string{"ReadWrite", "WriterLeaves", "SharedExpires", "SharedExtended", "Semaphore", "Inspect", "Once",
	"OnceAgain"}

// extended is a service in memory with locks of all kinds, and its driver, with a flaw.
type extended struct {
	flaw  flaw
	mu    sync.Mutex
	token int64
	locks map[string]holders.State
}

func (e *extended) now() int64 { return time.Now().UnixMicro() }

func (e *extended) update(r driver.Request, f func(s holders.State) holders.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := string(r.Kind) + " " + r.Key
	if e.flaw == mixes {
		key = r.Key
	}
	e.locks[key] = f(e.locks[key].Live(e.now()))
}

func (e *extended) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	k := &entry{e, r, holders.NewID(r.Label)}
	asked := r
	if e.flaw == crowds {
		asked.Limit = 1000
	}
	asked.Wait = r.Wait && e.flaw != starves
	for {
		var g driver.Grant
		e.update(r, func(s holders.State) holders.State {
			now := e.now()
			token := max(e.token+1, now)
			next, _, _ := s.Take(k.id, asked, now, token)
			if next.Find(k.id) == nil {
				return next
			}
			if e.flaw != oldTokens || e.token == 0 {
				e.token = token
			}
			g = driver.Grant{Lock: k, Token: e.token, Sent: time.Now(), TTL: r.TTL}
			if e.flaw == overstates {
				g.TTL *= 2
			}
			next.Find(k.id).Token = e.token
			return next
		})
		switch {
		case g.Lock != nil:
			return g, nil
		case !r.Wait:
			return g, driver.ErrHeld
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			if e.flaw != marks {
				k.Release(ctx)
			}
			return g, context.Cause(ctx)
		}
	}
}

func (e *extended) Close() error { return nil }

func (e *extended) Inspect(_ context.Context, r driver.Request) (d driver.State, err error) {
	e.update(r, func(s holders.State) holders.State {
		d = s.Inspect(e.now())
		return s
	})
	for i := range d.Holders {
		if e.flaw == anonymous {
			d.Holders[i].Label = ""
		}
	}
	return d, nil
}

func (e *extended) Break(_ context.Context, r driver.Request, token int64) error {
	err := driver.ErrLost
	e.update(r, func(s holders.State) holders.State {
		if e.flaw == breaksAny && len(s) > 0 {
			token = s[0].Token
		}
		next, broken := s.Break(token, e.now())
		if broken {
			err = nil
		}
		if e.flaw == keeps {
			return s
		}
		return next
	})
	return err
}

// entry is a lock that the request with this id has acquired.
type entry struct {
	*extended
	request driver.Request
	id      string
}

func (k *entry) Extend(_ context.Context, ttl time.Duration) error {
	err := driver.ErrLost
	k.update(k.request, func(s holders.State) holders.State {
		if h := s.Find(k.id); h != nil {
			if err = nil; k.flaw != lies {
				h.Until = k.now() + ttl.Microseconds()
			}
		}
		return s
	})
	if k.flaw == refuses {
		err = errors.New("refused")
	}
	return err
}

func (k *entry) Release(context.Context) error {
	err := driver.ErrLost
	k.update(k.request, func(s holders.State) holders.State {
		others, held := s.Without(k.id)
		if held {
			err = nil
		}
		if k.flaw == stuck {
			return s
		}
		return others
	})
	return err
}

func (m *memory) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for began := time.Now(); ctx.Err() == nil || m.flaw == deaf && time.Since(began) < 2*hang; {
		if h := m.take(r); h != nil {
			g := driver.Grant{Lock: h, Token: h.token, Sent: time.Now(), TTL: r.TTL}
			if m.flaw == overstates {
				g.TTL *= 2
			}
			return g, nil
		}
		switch {
		case r.Wait:
		case m.flaw == otherError:
			return driver.Grant{}, errors.New("busy")
		default:
			return driver.Grant{}, driver.ErrHeld
		}
		again, done := time.After(time.Millisecond), ctx.Done()
		if m.flaw == deaf {
			done = nil
		}
		select {
		case <-again:
		case <-done:
		}
	}
	if m.flaw == leaves {
		go func() {
			for began := time.Now(); m.take(r) == nil && time.Since(began) < 2*hang; {
				time.Sleep(time.Millisecond)
			}
		}()
	}
	return driver.Grant{}, context.Cause(ctx)
}

func (m *memory) Close() error { return nil }

// take returns nil if another holder has the lock.
func (m *memory) take(r driver.Request) *holder {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.flaw == folds {
		r.Key = strings.ToLower(r.Key)
	}
	if h := m.held[r.Key]; h != nil && now.Before(h.expiry) && m.flaw != shares {
		return nil
	}
	if m.flaw != oldTokens {
		m.token++
	}
	h := &holder{memory: m, key: r.Key, token: m.token, expiry: now.Add(r.TTL)}
	if m.flaw == early {
		h.expiry = now.Add(r.TTL / 2)
	}
	m.held[r.Key] = h
	return h
}

func (h *holder) Extend(_ context.Context, ttl time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	switch {
	case h.flaw == refuses:
		return errors.New("refused")
	case h.flaw == steals:
		h.held[h.key] = h
	case h.held[h.key] != h, !now.Before(h.expiry):
		return driver.ErrLost
	case h.flaw == lies:
		return nil
	}
	h.expiry = now.Add(ttl)
	return nil
}

func (h *holder) Release(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	if h.held[h.key] != h || !time.Now().Before(h.expiry) {
		err = driver.ErrLost
	}
	switch {
	case h.flaw == stuck:
		h.expiry = h.expiry.Add(time.Hour)
	case h.held[h.key] == h, h.flaw == frees:
		delete(h.held, h.key)
	}
	return err
}

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
}

func (r *recorder) fail() {
	r.mu.Lock()
	r.failed = true
	r.mu.Unlock()
}

func (r *recorder) Error(...any)          { r.fail() }
func (r *recorder) Errorf(string, ...any) { r.fail() }
func (r *recorder) Fatal(...any)          { r.fail(); runtime.Goexit() }
func (r *recorder) Fatalf(string, ...any) { r.fail(); runtime.Goexit() }
func (r *recorder) Logf(string, ...any)   {}

// fails reports whether a test of the suite fails for a driver with this flaw.
func fails(t *testing.T, test func(*suite), f flaw, ofKinds bool) bool {
	failed := false
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		var d driver.Driver = &memory{flaw: f, token: 1, held: make(map[string]*holder)}
		if ofKinds {
			d = &extended{flaw: f, locks: make(map[string]holders.State)}
		}
		b := Backend{New: func(testing.TB, *lock.Options) driver.Driver { return d }}
		done := make(chan struct{})
		go func() {
			defer close(done)
			test(&suite{TB: r, b: b, name: cmp.Or(t.Name(), "a"), life: 1200 * time.Millisecond, exact: true})
		}()
		<-done
		time.Sleep(3 * hang) // until no background work is left
		r.mu.Lock()
		failed = r.failed
		r.mu.Unlock()
	})
	return failed
}

// TestFlaws: each test of the suite passes for a correct driver, and fails for those with a flaw.
func TestFlaws(t *testing.T) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, ofKinds := range []bool{false, true} {
				if fails(t, test.run, none, ofKinds) {
					t.Errorf("fails for a correct driver (extended: %v)", ofKinds)
				}
			}
			found, listed := flaws[test.name]
			if !listed {
				t.Error("no flaw is listed for this test")
			}
			for _, f := range found {
				if !fails(t, test.run, f, slices.Contains(kinds, test.name)) {
					t.Errorf("the test does not detect this flaw: the driver %s", f)
				}
			}
		})
	}
}
