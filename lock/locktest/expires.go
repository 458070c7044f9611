package locktest

import (
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// prefix is the beginning of all keys, as that of a Locker by default.
const prefix = "lock:"

// driver returns a driver for requests without a Locker.
func (s *suite) driver() driver.Driver {
	s.Helper()
	d := s.b.New(s.TB, &lock.Options{Prefix: prefix, TTL: s.life, Timeout: s.life / 4})
	s.Cleanup(func() { _ = d.Close() })
	return d
}

// request returns a request for the test's lock.
func (s *suite) request(ttl time.Duration, wait bool) driver.Request {
	return driver.Request{Key: prefix + s.name, TTL: ttl, Timeout: ttl / 4, Wait: wait, Lost: func(error) {}}
}

// expires: a lock that is not extended expires after its TTL, and not before. Afterwards its holder
// can neither extend it nor release the lock of the next holder. A Locker asks for neither, but its
// last request may arrive late.
func expires(s *suite) {
	if s.b.Session {
		return
	}
	a, b := s.driver(), s.driver()
	old, err := a.Acquire(s.within(), s.request(s.life, false))
	if err != nil {
		s.late("acquire: %v", err)
	}
	next, err := b.Acquire(s.within(), s.request(lasting, true))
	got := time.Now()
	s.check(err)
	if held := got.Sub(old.Sent); held < old.TTL-old.TTL/20 { // the clocks may differ a little
		s.Errorf("another driver acquired the lock %v after the request for it, whose TTL is %v", held, old.TTL)
	}
	if next.Token <= old.Token {
		s.Errorf("token %d after %d", next.Token, old.Token)
	}
	s.expired(old.Lock.Extend(s.within(), lasting))
	s.driverHeld(a)
	s.expired(old.Lock.Release(s.within()))
	s.driverHeld(a)
	s.check(next.Lock.Extend(s.within(), lasting))
	s.check(next.Lock.Release(s.within()))
	last, err := a.Acquire(s.within(), s.request(lasting, false))
	s.check(err)
	s.check(last.Lock.Release(s.within()))
}

// expired asserts that err is that of a request for a lock that has expired. The timeout of the
// request is a quarter of the lifetime, which may be too short for this machine.
func (s *suite) expired(err error) {
	s.Helper()
	if errors.Is(err, context.DeadlineExceeded) {
		s.late("a request for a lock that has expired: %v", err)
	}
	s.is(err, driver.ErrLost)
}

// driverHeld asserts that d cannot acquire the lock.
func (s *suite) driverHeld(d driver.Driver) {
	s.Helper()
	g, err := d.Acquire(s.within(), s.request(lasting, false))
	if err == nil {
		_ = g.Lock.Release(context.WithoutCancel(s.Context()))
	}
	s.is(err, driver.ErrHeld)
}
