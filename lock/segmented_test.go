package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// inSegments runs f in a bubble with n segments in this process's memory.
func inSegments(t *testing.T, n int, f func(t *testing.T, s *lock.Segmented, l *lock.Locker)) {
	synctest.Test(t, func(t *testing.T) {
		l, err := lock.NewLocal(nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := lock.NewSegmented(l, n)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}()
		f(t, s, l)
	})
}

// acquire fails the test if it does not get the wanted segment. -1 accepts any.
func acquire(t *testing.T, ctx context.Context, s *lock.Segmented, home, want int) *lock.Segment {
	t.Helper()
	g, err := s.Acquire(ctx, "phone", home, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want >= 0 && g.Index != want {
		t.Fatalf("got segment %d, want %d", g.Index, want)
	}
	return g
}

func TestSegmentedHome(t *testing.T) {
	inSegments(t, 4, func(t *testing.T, s *lock.Segmented, l *lock.Locker) {
		a := acquire(t, t.Context(), s, 2, 2)
		acquire(t, t.Context(), s, 2, 3) // the next free segment
		acquire(t, t.Context(), s, 2, 0)
		acquire(t, t.Context(), s, 6, 1)
		if _, err := l.TryAcquire(t.Context(), "phone/3", nil); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("the lock of a segment: %v", err)
		}
		time.AfterFunc(3*time.Second, func() { a.Release() })
		began := time.Now()
		acquire(t, t.Context(), s, 2, 2) // it waits at home
		if waited := time.Since(began); waited != 3*time.Second {
			t.Errorf("Acquire waits for %v, want 3s", waited)
		}
	})
}

// Callers without a home are spread over all segments, wherever a process begins.
func TestSegmentedSpreads(t *testing.T) {
	inSegments(t, 10, func(t *testing.T, s *lock.Segmented, _ *lock.Locker) {
		got := make([]int, 10)
		for range 1000 {
			g := acquire(t, t.Context(), s, -1, -1)
			got[g.Index]++
			g.Release()
		}
		if slices.Min(got) != 100 || slices.Max(got) != 100 {
			t.Errorf("callers per home: %d, want 100 each", got)
		}
	})
}

func TestSegmentedNext(t *testing.T) {
	inSegments(t, 3, func(t *testing.T, s *lock.Segmented, _ *lock.Locker) {
		other := acquire(t, t.Context(), s, 0, 0)
		g := acquire(t, t.Context(), s, 1, 1)
		first := g
		g, err := g.Next(t.Context())
		if err != nil || g.Index != 2 {
			t.Fatalf("%v, %v", g, err)
		}
		if first.Context().Err() == nil {
			t.Fatal("Next keeps the previous segment")
		}
		acquire(t, t.Context(), s, 1, 1).Release()

		// The last segment is held: Next waits for it without holding another.
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.Next(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if other.Release() != nil {
			t.Error("the segment was lost")
		}
		last, err := g.Next(t.Context())
		if err != nil || last.Index != 0 {
			t.Fatalf("%v, %v", last, err)
		}
		if _, err := last.Next(t.Context()); !errors.Is(err, lock.ErrAllSeen) {
			t.Errorf("error %v", err)
		}
		for i := range 3 {
			acquire(t, t.Context(), s, i, i)
		}
	})
}

// An owner waits for a segment that it holds already. Other callers wait where few wait, whatever
// their home.
func TestSegmentedWaitersChooseShortQueue(t *testing.T) {
	inSegments(t, 4, func(t *testing.T, s *lock.Segmented, _ *lock.Locker) {
		const each = 5
		var mu sync.Mutex
		got := make([]int, 4)
		var all sync.WaitGroup
		began := time.Now()
		for range 4 * each {
			all.Go(func() {
				g, err := s.Acquire(t.Context(), "phone", 0, nil)
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Second)
				mu.Lock()
				got[g.Index]++
				mu.Unlock()
				g.Release()
			})
			synctest.Wait() // so that they arrive one after another
		}
		all.Wait()
		if took := time.Since(began); took != each*time.Second || slices.Min(got) != each {
			t.Errorf("callers served per segment: %d in %v", got, took)
		}
	})
}

func TestSegmentedCancelled(t *testing.T) {
	inSegments(t, 2, func(t *testing.T, s *lock.Segmented, l *lock.Locker) {
		acquire(t, t.Context(), s, 0, 0)
		b := acquire(t, t.Context(), s, 0, 1)
		gone := errors.New("the customer has left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(gone) })
		if _, err := s.Acquire(ctx, "phone", 1, nil); !errors.Is(err, gone) {
			t.Errorf("error %v", err)
		}
		if _, err := s.Acquire(t.Context(), "phone", 1, &lock.AcquireOptions{Wait: time.Second}); !errors.Is(err,
			lock.ErrHeld) {
			t.Errorf("error %v", err)
		}
		b.Release()
		acquire(t, t.Context(), s, 0, 1) // the failed calls have left nothing behind
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.Acquire(t.Context(), "phone", 1, nil); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("error %v", err)
		}
	})
}

func TestSegmentedOwner(t *testing.T) {
	inSegments(t, 3, func(t *testing.T, s *lock.Segmented, l *lock.Locker) {
		ctx := lock.WithOwner(t.Context())
		acquire(t, t.Context(), s, 0, 0)
		outer := acquire(t, ctx, s, 0, 1)
		inner := acquire(t, ctx, s, 2, 1) // not 2, although it is free
		if inner.Token() != outer.Token() {
			t.Error("an owner gets two locks")
		}
		inner.Release()
		if _, err := l.TryAcquire(t.Context(), "phone/1", nil); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("the inner release frees the lock: %v", err)
		}
		outer.Release()
		acquire(t, t.Context(), s, 1, 1)
		acquire(t, lock.WithOwner(t.Context()), s, 1, 2) // a different owner
	})
}

// Two owners hold a segment each and ask for the other's. Neither waits for the other.
func TestSegmentedOwnersDoNotDeadlock(t *testing.T) {
	inSegments(t, 2, func(t *testing.T, s *lock.Segmented, _ *lock.Locker) {
		var ctxs [2]context.Context
		var outer, inner [2]*lock.Segment
		for home := range 2 { // both hold theirs before either asks for another
			ctx, cancel := context.WithTimeout(lock.WithOwner(t.Context()), time.Minute)
			defer cancel()
			ctxs[home] = ctx
			outer[home] = acquire(t, ctx, s, home, home)
			inner[home] = acquire(t, ctx, s, home, home)
		}
		var all sync.WaitGroup
		for home := range 2 {
			all.Go(func() {
				if _, err := inner[home].Next(ctxs[home]); !errors.Is(err, lock.ErrHeld) {
					t.Errorf("error %v", err)
				}
				time.Sleep(time.Second)
				if outer[home].Release() != nil {
					t.Error("the segment was lost")
				}
			})
		}
		all.Wait()
	})
}

func TestSegmentedOptions(t *testing.T) {
	l, err := lock.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, n := range []int{-1, 0, 1001} {
		if _, err := lock.NewSegmented(l, n); err == nil {
			t.Errorf("%d segments, and no error", n)
		}
	}
	if _, err := lock.NewSegmented(nil, 1); err == nil {
		t.Error("no Locker, and no error")
	}
	s, err := lock.NewSegmented(l, 1000)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1024)
	if _, err := s.Acquire(t.Context(), long, 7, nil); err == nil || strings.Contains(err.Error(), long) {
		t.Errorf("error %v", err)
	}
	if _, err := s.Acquire(t.Context(), "a", 7, &lock.AcquireOptions{TTL: 1}); err == nil {
		t.Error("a TTL of a nanosecond, and no error")
	}
}

// In a cluster the segments are on several nodes, and no request involves two of them. Several
// Lockers, like several processes, sell 60 pieces from 12 segments, each piece once.
func TestSegmentedCluster(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	const segments, each, lockers, buyers = 12, 5, 3, 40
	var mu sync.Mutex
	left, sold, empty := make([]int, segments), 0, 0
	for i := range left {
		left[i] = each
	}
	busy := make([]bool, segments)
	// sell is the work of one buyer in a segment.
	sell := func(i int) bool {
		mu.Lock()
		if busy[i] {
			t.Errorf("two buyers are in segment %d", i)
		}
		n := left[i]
		busy[i] = true
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		busy[i] = false
		if n > 0 {
			left[i] = n - 1
			sold++
		}
		return n > 0
	}
	var all sync.WaitGroup
	for range lockers {
		l, err := lock.NewRedis(cluster.Client(t), locktest.Patient())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		s, err := lock.NewSegmented(l, segments)
		if err != nil {
			t.Fatal(err)
		}
		for range buyers {
			all.Go(func() {
				g, err := s.Acquire(t.Context(), "phone", -1, nil)
				for err == nil {
					if sell(g.Index) {
						if err := g.Release(); err != nil {
							t.Error(err)
						}
						return
					}
					g, err = g.Next(t.Context())
				}
				if !errors.Is(err, lock.ErrAllSeen) {
					t.Error(err)
				}
				mu.Lock()
				empty++
				mu.Unlock()
			})
		}
	}
	all.Wait()
	if sold != segments*each || empty != lockers*buyers-sold {
		t.Errorf("sold %d, left %v, %d buyers found nothing", sold, left, empty)
	}
	for _, node := range cluster.Nodes[:3] {
		if n := keysOf(t, node.Client(t)); n == 0 {
			t.Errorf("no segment is on node %s", node.Addr)
		}
	}
}

func keysOf(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "lock:{phone/*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return len(keys)
}

func ExampleSegmented() {
	ctx := context.Background()
	l, err := lock.NewLocal(nil) // or NewRedis, or any other Locker
	if err != nil {
		panic(err)
	}
	defer l.Close()
	segments, err := lock.NewSegmented(l, 3)
	if err != nil {
		panic(err)
	}
	left := []int{0, 0, 1} // per segment; usually in a database

	g, err := segments.Acquire(ctx, "phone", 1, nil)
	for err == nil && left[g.Index] == 0 {
		g, err = g.Next(ctx)
	}
	switch {
	case errors.Is(err, lock.ErrAllSeen):
		fmt.Println("sold out")
	case err != nil:
		fmt.Println(err)
	default:
		left[g.Index]--
		fmt.Println("bought in segment", g.Index)
		fmt.Println("released:", g.Release())
	}
	// Output:
	// bought in segment 2
	// released: <nil>
}

// An owner that is releasing its segment gets another one, and does not busy-wait for the first.
// This test has no bubble, because a busy loop would stop its time.
func TestReleasingSegmentIsNotReused(t *testing.T) {
	releasing, answer := make(chan struct{}), make(chan struct{})
	f := &fake{}
	f.release = func(context.Context) error {
		if f.asked() == 1 {
			close(releasing)
			<-answer
		}
		return nil
	}
	s, err := lock.NewSegmented(locktest.Closed(t)(lock.New(f, nil)), 2)
	locktest.Want(t, "new", err, nil)
	ctx, cancel := context.WithTimeout(lock.WithOwner(t.Context()), testenv.Hang)
	defer cancel()
	first := acquire(t, ctx, s, 0, 0)
	done := make(chan error)
	go func() { done <- first.Release() }()
	<-releasing
	defer func() {
		close(answer)
		locktest.Want(t, "release", <-done, nil)
	}()
	acquire(t, ctx, s, 0, 1).Release()
}
