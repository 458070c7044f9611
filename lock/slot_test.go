package lock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// movingSlot calls test while the cluster moves the slot of lock "a", once with its key on the
// first server and once without a key. The client of l has a hook that calls of.
func movingSlot(
	t *testing.T, o *lock.Options, of func(hash string, next func() error) error,
	test func(t *testing.T, l, other *lock.Locker),
) {
	t.Helper()
	for name, exists := range map[string]bool{"key": true, "no key": false} {
		t.Run(name, func(t *testing.T) {
			cluster := testenv.SharedCluster(t)
			rdb, direct := cluster.Client(t), cluster.Client(t)
			rdb.AddHook(lasting{locktest.Scripted{Wrap: of}})
			l, other := locktest.Closed(t)(lock.NewRedis(rdb, o)), locktest.Closed(t)(lock.NewRedis(direct,
				locktest.Patient()))
			if exists {
				acquired(t, other, nil).Release()
			}
			moveSlot(t, direct, "lock:{a}")
			test(t, l, other)
		})
	}
}

// moveSlot makes the cluster move the slot of a key, until the test ends. No key is moved.
func moveSlot(t *testing.T, rdb *redis.ClusterClient, key string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	from, err := rdb.MasterForKey(ctx, key)
	check(err)
	to := from
	for i := 0; to == from; i++ {
		to, err = rdb.MasterForKey(ctx, "{"+conn.Tag(i)+"}")
		check(err)
	}
	for _, node := range []*redis.Client{from, to} {
		for _, s := range []conn.Script{lock.RedisAcquire, lock.RedisSettle} {
			check(node.ScriptLoad(ctx, s.Source).Err())
		}
	}
	slot := rdb.ClusterKeySlot(ctx, key).Val()
	id := func(c *redis.Client) string { return c.Do(ctx, "cluster", "myid").Val().(string) }
	check(to.Do(ctx, "cluster", "setslot", slot, "importing", id(from)).Err())
	check(from.Do(ctx, "cluster", "setslot", slot, "migrating", id(to)).Err())
	t.Cleanup(func() {
		pipe := to.Pipeline()
		pipe.Do(ctx, "asking")
		pipe.Del(ctx, key)
		pipe.Exec(ctx)
		check(from.Do(ctx, "cluster", "setslot", slot, "stable").Err())
		check(to.Do(ctx, "cluster", "setslot", slot, "stable").Err())
	})
}

// TestSlotMoves: a lock can be acquired while its slot is moved, and excludes others.
func TestSlotMoves(t *testing.T) {
	undisturbed := func(_ string, next func() error) error { return next() }
	movingSlot(t, locktest.Patient(), undisturbed, func(t *testing.T, l, other *lock.Locker) {
		lease, err := l.Acquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire", err, nil)
		_, err = other.TryAcquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire what another holds", err, lock.ErrHeld)
		locktest.Want(t, "extend", lease.Extend(t.Context()), nil)
		locktest.Want(t, "release", lease.Release(), nil)
		next, err := other.TryAcquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire", err, nil)
		if next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
		locktest.Want(t, "release", next.Release(), nil)
	})
}

var errReplyLost = errors.New("the reply is lost")

// TestSlotMovesReplyLost: a lock whose reply was lost is taken over while its slot is moved.
func TestSlotMovesReplyLost(t *testing.T) {
	var lost atomic.Bool
	of := func(hash string, next func() error) error {
		err := next()
		if err == nil && locktest.Is(hash, lock.RedisAcquire) && lost.CompareAndSwap(false, true) {
			err = errReplyLost
		}
		return err
	}
	movingSlot(t, locktest.Quick(time.Second), of, func(t *testing.T, l, other *lock.Locker) {
		lost.Store(false)
		lease := locktest.InTheEnd(t, l, "a", nil)
		if !lost.Load() {
			t.Error("no reply was lost")
		}
		_, err := other.TryAcquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire what another holds", err, lock.ErrHeld)
		testenv.Eventually(t, "the release", func() bool { return lease.Release() == nil })
		acquired(t, other, nil).Release()
	})
}

// abandoned is a hook that cancels an Acquire whose request is in flight, and drops the reply.
type abandoned struct {
	cancel     context.CancelFunc
	before     chan struct{} // closed when the request may proceed
	carriedOut chan struct{}
	cleanedUp  chan struct{} // closed after the first cleanup
	cleanUps   atomic.Int32
}

func (a *abandoned) of(hash string, next func() error) error {
	switch {
	case locktest.Is(hash, lock.RedisSettle):
		err := next()
		if err == nil && a.cleanUps.Add(1) == 1 {
			close(a.cleanedUp)
		}
		return err
	case !locktest.Is(hash, lock.RedisAcquire):
		return next()
	}
	a.cancel()
	<-a.before
	next()
	close(a.carriedOut)
	return errReplyLost
}

// TestSlotMovesCancelled: a cancelled Acquire leaves no lock while its slot is moved, even if its
// request is executed after a cleanup and after Close.
func TestSlotMovesCancelled(t *testing.T) {
	for name, late := range map[string]bool{"late": true, "reply lost": false} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			var hook atomic.Pointer[abandoned]
			of := func(hash string, next func() error) error {
				if locktest.Is(hash, lock.RedisAcquire) && requests.Add(1) != 2 { // the first one has two keys
					return next()
				}
				return hook.Load().of(hash, next)
			}
			movingSlot(t, locktest.Quick(time.Second), of, func(t *testing.T, l, other *lock.Locker) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				a := &abandoned{cancel: cancel, before: make(chan struct{}), carriedOut: make(chan struct{}),
					cleanedUp: make(chan struct{})}
				hook.Store(a)
				requests.Store(0)
				if !late {
					close(a.before)
				}
				testenv.Eventually(t, "a cancelled Acquire", func() bool {
					_, err := l.Acquire(ctx, "a", nil)
					return errors.Is(err, context.Canceled)
				})
				closed := make(chan error, 1)
				if late {
					testenv.Receive(t, "a cleanup", a.cleanedUp)
					go func() { closed <- l.Close() }()
					close(a.before)
				} else {
					testenv.Receive(t, "the request", a.carriedOut)
					closed <- l.Close()
				}
				locktest.Want(t, "close", testenv.Receive(t, "the end of Close", closed), nil)
				lease, err := other.TryAcquire(t.Context(), "a", nil)
				locktest.Want(t, "acquire", err, nil)
				locktest.Want(t, "release", lease.Release(), nil)
			})
		})
	}
}

// TestSlotMovesBeforeCleanup: a cancelled Acquire leaves no lock if the move begins between its
// request and the cleanup.
func TestSlotMovesBeforeCleanup(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	rdb, direct := cluster.Client(t), cluster.Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	moves := make(chan struct{})
	rdb.AddHook(lasting{locktest.Scripted{Wrap: func(hash string, next func() error) error {
		switch {
		case locktest.Is(hash, lock.RedisAcquire):
			next()
			cancel()
			return errReplyLost
		case locktest.Is(hash, lock.RedisSettle):
			testenv.Receive(t, "the move", moves)
		}
		return next()
	}}})
	l, other := locktest.Closed(t)(lock.NewRedis(rdb,
		locktest.Quick(time.Second))), locktest.Closed(t)(lock.NewRedis(direct, locktest.Patient()))
	acquired(t, other, nil).Release() // so that the scripts are known
	testenv.Eventually(t, "a cancelled Acquire", func() bool {
		_, err := l.Acquire(ctx, "a", nil)
		return errors.Is(err, context.Canceled)
	})
	moveSlot(t, direct, "lock:{a}")
	close(moves)
	locktest.Want(t, "close", l.Close(), nil)
	lease, err := other.TryAcquire(t.Context(), "a", nil)
	locktest.Want(t, "acquire", err, nil)
	locktest.Want(t, "release", lease.Release(), nil)
}
