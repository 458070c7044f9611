package locktest

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
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
	"BadInput":        nil,
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
func fails(t *testing.T, test func(*suite), f flaw) bool {
	failed := false
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		m := &memory{flaw: f, token: 1, held: make(map[string]*holder)}
		b := Backend{New: func(testing.TB, *lock.Options) driver.Driver { return m }}
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
			if fails(t, test.run, none) {
				t.Error("fails for a correct driver")
			}
			found, listed := flaws[test.name]
			if !listed {
				t.Error("no flaw is listed for this test")
			}
			for _, f := range found {
				if !fails(t, test.run, f) {
					t.Errorf("the test does not detect this flaw: the driver %s", f)
				}
			}
		})
	}
}
