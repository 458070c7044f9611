package promises

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// localLocker returns a Locker of this process.
func localLocker(t testing.TB) *lock.Locker {
	t.Helper()
	l, err := lock.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// free asserts that the lock of a row is free.
func free(t testing.TB, l *lock.Locker, p process, key string) {
	t.Helper()
	name, _ := readerOf(p.Loader).Keys.Name(key)
	lease, err := l.TryAcquire(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
}

// A load holds the loader's lock of its row. It has released the lock when its callers get their
// value or any other result.
func TestLoadLock(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		locker := localLocker(t)
		var name string
		load := func(ctx context.Context, key int) (string, error) {
			switch key {
			case 1:
				if _, err := locker.TryAcquire(ctx, name, nil); !errors.Is(err, lock.ErrHeld) {
					t.Errorf("the lock during a load of its row: %v", err)
				}
			case 2:
				return "", errors.New("as told")
			case 3:
				panic("as told")
			case 4:
				runtime.Goexit()
			case 5:
				<-ctx.Done() // until its timeout
				return "", ctx.Err()
			case 6, 7, 8, 9:
				return "", cacheaside.ErrNotFound
			}
			return "one", nil
		}
		p := startLoad(t, b.client(t), load, steady,
			&cacheaside.LoaderOptions{Locker: locker, LoadTimeout: time.Minute})
		name, _ = readerOf(p.Loader).Keys.Name("1")
		p.want(t, 1, "one", nil)
		free(t, locker, p, "1")
		for _, key := range []int{2, 3, 4} {
			if _, err := p.Get(t.Context(), key); err == nil {
				t.Errorf("row %d: no error", key)
			}
		}
		hasty := startLoad(t, b.client(t), load, steady,
			&cacheaside.LoaderOptions{Locker: locker, LoadTimeout: 10 * time.Millisecond})
		hasty.want(t, 5, "", cacheaside.ErrLoadTimeout)
		p.want(t, 6, "", cacheaside.ErrNotFound)
		if v, err := p.Refresh(t.Context(), 1); v != "one" || err != nil {
			t.Error(v, err)
		}
		if _, err := p.GetMany(t.Context(), []int{7, 8, 9}); err != nil {
			t.Error(err)
		}
		for _, key := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
			free(t, locker, p, key)
		}
		if n := p.Stats().Unlocked + hasty.Stats().Unlocked; n != 0 {
			t.Errorf("%d loads ran without the lock, want 0", n)
		}
	})
}

// A load that has waited for its lock looks up the key again: another process may have invalidated
// and loaded it.
func TestLoadLockRepeatsLookup(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		locker := localLocker(t)
		o := steadyNoMemory
		d := newTable(map[int]string{1: "one"})
		p := start(t, b, d, o, &cacheaside.LoaderOptions{Locker: locker})
		other := start(t, b, newTable(map[int]string{1: "another"}), o, nil)
		name, _ := readerOf(p.Loader).Keys.Name("1")
		lease, err := locker.Acquire(t.Context(), name, nil)
		if err != nil {
			t.Fatal(err)
		}
		read := later(func() (string, error) { return p.Get(t.Context(), 1) })
		// Then it waits for its lock.
		testenv.Eventually(t, "the load has its lease", func() bool {
			return b.admin.Exists(t.Context(), name).Val() == 1
		})
		if err := other.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		other.want(t, 1, "another", nil)
		lease.Release()
		if v, err := read(t); v != "another" || err != nil || d.loads.Load() != 0 {
			t.Errorf("%q, %v, %d loads", v, err, d.loads.Load())
		}
		free(t, locker, p, "1")
	})
}

// A load whose callers have left while it waits for its lock keeps neither the lock nor the lease.
func TestLoadLockAbandoned(t *testing.T) {
	_, b := embedded(t)
	locker := localLocker(t)
	o := steadyNoMemory
	p := start(t, b, newTable(map[int]string{1: "one"}), o, &cacheaside.LoaderOptions{Locker: locker, MustLock: true})
	name, _ := readerOf(p.Loader).Keys.Name("1")
	lease, err := locker.Acquire(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := p.Get(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	testenv.Eventually(t, "the end of its lease", func() bool { return b.admin.Exists(t.Context(), name).Val() == 0 })
	lease.Release()
	p.want(t, 1, "one", nil)
	if s := p.Stats(); s.Unlocked != 0 {
		t.Errorf("%d unlocked", s.Unlocked)
	}
}

// If the lock service is down, reads load without the lock, and count that, unless MustLock is set.
func TestLoadLockFails(t *testing.T) {
	_, b := embedded(t)
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1})
	defer nowhere.Close()
	down, err := lock.NewRedis(nowhere, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer down.Close()
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Locker: down})
	p.want(t, 1, "one", nil)
	if s := p.Stats(); s.Unlocked != 1 {
		t.Errorf("%d unlocked", s.Unlocked)
	}
	must := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Locker: down, MustLock: true, Version: "2",
		ErrorTTL: time.Hour})
	for range 2 { // the database was not asked, so no failure is remembered
		if _, err := must.Get(t.Context(), 1); !errors.Is(err, cacheaside.ErrUnavailable) {
			t.Error(err)
		}
	}
	if s := must.Stats(); s.Unlocked != 2 || s.Loads != 0 {
		t.Errorf("%+v", s)
	}
}

// One process at a time loads a row, even while the cache's Redis is lost.
func TestLoadLockWithoutRedis(t *testing.T) {
	server := testenv.StartRedis(t)
	locker := localLocker(t)
	d := newTable(map[int]string{1: "one"})
	d.read = func(context.Context, int64) error { time.Sleep(20 * time.Millisecond); return nil }
	o := cacheaside.Options{MemoryBytes: -1, QueueTimeout: time.Minute}
	var fleet []process
	for range 4 {
		fleet = append(fleet, startOn(t, server.Client(t), d, o, &cacheaside.LoaderOptions{Locker: locker}))
	}
	server.Kill()
	var all sync.WaitGroup
	for _, p := range fleet {
		all.Go(func() {
			for range 3 {
				p.want(t, 1, "one", nil)
			}
		})
	}
	all.Wait()
	if d.most.Load() != 1 {
		t.Errorf("%d concurrent loads", d.most.Load())
	}
}

func TestLoadLockOptions(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	load := func(context.Context, []int) (map[int]string, error) { return nil, nil }
	if _, err := cacheaside.NewBatchLoader(c, "a", load,
		&cacheaside.LoaderOptions{Locker: localLocker(t)}); err == nil {
		t.Error("a batch loader accepts a Locker")
	}
	if _, err := cacheaside.NewBatchLoader(c, "a", load, &cacheaside.LoaderOptions{MustLock: true}); err == nil {
		t.Error("MustLock is accepted without a Locker")
	}
	one := func(context.Context, int) (string, error) { return "", nil }
	if _, err := cacheaside.NewLoader(c, "a", one,
		&cacheaside.LoaderOptions{Locker: (*lock.Locker)(nil)}); err == nil ||
		!strings.Contains(err.Error(), "LoaderOptions.Locker: a nil *lock.Locker") {
		t.Error(err)
	}
}

// userLocker is a Locker written by a user.
type userLocker func() (unlock func() error, err error)

func (u userLocker) Lock(context.Context, string, time.Duration) (func() error, error) { return u() }

// A user's Locker that panics, fails or returns an invalid result counts as a lock that could not
// be acquired or released. The row is loaded anyway, unless MustLock is set.
func TestFailingUserLocker(t *testing.T) {
	fine := func() error { return nil }
	for name, c := range map[string]struct {
		lock userLocker
		had  bool
	}{
		"an error":          {func() (func() error, error) { return nil, errors.New("as told") }, false},
		"an error and both": {func() (func() error, error) { return fine, errors.New("as told") }, false},
		"a panic":           {func() (func() error, error) { panic("as told") }, false},
		"neither":           {func() (func() error, error) { return nil, nil }, false},
		"unlock fails":      {func() (func() error, error) { return func() error { return lock.ErrLost }, nil }, true},
		"unlock panics":     {func() (func() error, error) { return func() error { panic("as told") }, nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "one"})
			p := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Locker: c.lock})
			p.want(t, 1, "one", nil)
			p.want(t, 1, "one", nil)
			if s := p.Stats(); s.Unlocked != 1 || s.Loads != 1 || s.RedisHits != 1 {
				t.Errorf("%+v", s)
			}
			must := start(t, b, d, steadyNoMemory,
				&cacheaside.LoaderOptions{Locker: c.lock, MustLock: true, Version: "2"})
			if _, err := must.Get(t.Context(), 1); c.had != (err == nil) || !c.had &&
				!errors.Is(err, cacheaside.ErrUnavailable) {
				t.Error(err)
			}
			if s := must.Stats(); s.Unlocked != 1 || (s.Loads == 1) != c.had {
				t.Errorf("%+v", s)
			}
		})
	}
}
