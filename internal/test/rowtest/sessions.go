package rowtest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// Sessions checks that locks do not depend on settings of the session, such as those of the clock.
// dsn returns the data source name with the settings.
func Sessions(t *testing.T, w World, settings []string, dsn func(settings string) string) {
	o := &lock.Options{TTL: 10 * time.Minute, Timeout: testenv.Hang / 4}
	other := w.Locker(t, w.db(t), o)
	var last int64
	for i, settings := range settings {
		good := t.Run(settings, func(t *testing.T) {
			mine, theirs := w.Open(t, dsn(settings)), w.Open(t, dsn(settings))
			a, b := w.Locker(t, mine, o), w.Locker(t, theirs, o)
			for _, name := range []string{"all", fmt.Sprint("own", i), "all", fmt.Sprint("own", i)} {
				lease, err := a.Acquire(within(t, testenv.Hang), name, nil)
				check(t, err)
				if name == "all" && lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				last = max(last, lease.Token())
				if left := time.Until(lease.Deadline()); left < 5*time.Minute || left > 10*time.Minute {
					t.Errorf("a life of %v", left)
				}
				for _, l := range []*lock.Locker{b, other} {
					if _, err := l.TryAcquire(within(t, testenv.Hang), name, nil); !errors.Is(err, lock.ErrHeld) {
						t.Fatalf("by another: %v", err)
					}
				}
				check(t, lease.Extend(within(t, testenv.Hang)))
				check(t, lease.Release())
				for _, l := range []*lock.Locker{other, b} {
					lease, err := l.TryAcquire(within(t, testenv.Hang), name, nil)
					check(t, err)
					check(t, lease.Release())
					last = max(last, lease.Token())
				}
			}
		})
		if !good {
			return
		}
	}
}

// Contention checks mutual exclusion and growing tokens of 15 lockers that compete for three new
// locks. Some of them use sessions with the settings of the data source name other.
func Contention(t *testing.T, w World, other string) {
	var inside [3]atomic.Int32
	var last [3]atomic.Int64
	var all sync.WaitGroup
	for i := range 5 {
		db := w.Open(t, []string{w.DSN, other}[i%2])
		for j := range 3 {
			l := w.Locker(t, db, Long)
			all.Go(func() {
				for k := range 3 * 4 {
					n := (k + j) % 3
					lease, err := l.Acquire(within(t, testenv.Hang), fmt.Sprint("n", n), nil)
					if err != nil {
						t.Error(err)
						return
					}
					if inside[n].Add(1) != 1 {
						t.Error("two have the lock")
					}
					if before := last[n].Swap(lease.Token()); before >= lease.Token() {
						t.Errorf("token %d after %d", lease.Token(), before)
					}
					inside[n].Add(-1)
					if err := lease.Release(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
}
