//go:build accept

package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncdriver "github.com/go-redsync/redsync/v4/redis"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// lockLife is the TTL of all locks.
const lockLife = 10 * time.Second

var compareAndDelete = redis.NewScript(
	`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// locking is an implementation of a lock. acquire waits until it holds the lock.
type locking struct {
	name    string
	acquire func(ctx context.Context, name string) (release func() error, err error)
}

// rawLock is the simplest lock in Redis. It does not wait.
func rawLock(rdb *redis.Client) locking {
	return locking{"SET NX PX, compare and delete", func(ctx context.Context, name string) (func() error, error) {
		id := rand.Text()
		if err := rdb.SetArgs(ctx, name, id, redis.SetArgs{Mode: "NX", TTL: lockLife}).Err(); err != nil {
			return nil, err
		}
		return func() error { return compareAndDelete.Run(ctx, rdb, []string{name}, id).Err() }, nil
	}}
}

func redsyncLock(name string, nodes []*redis.Client, options ...redsync.Option) locking {
	var pools []redsyncdriver.Pool
	for _, rdb := range nodes {
		pools = append(pools, redsyncredis.NewPool(rdb))
	}
	rs := redsync.New(pools...)
	options = append([]redsync.Option{redsync.WithExpiry(lockLife)}, options...)
	return locking{name, func(ctx context.Context, name string) (func() error, error) {
		m := rs.NewMutex(name, options...)
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error {
			if ok, err := m.UnlockContext(ctx); err != nil || !ok {
				return cmpErr(err, "redsync: it was not held any more")
			}
			return nil
		}, nil
	}}
}

// cmpErr returns err, or an error with the reason if err is nil.
func cmpErr(err error, why string) error {
	if err == nil {
		err = errors.New(why)
	}
	return err
}

// ownLock is a Locker of this library.
func ownLock(name string, l *lock.Locker, o *lock.AcquireOptions) locking {
	return locking{name, func(ctx context.Context, name string) (func() error, error) {
		lease, err := l.Acquire(ctx, name, o)
		if err != nil {
			return nil, err
		}
		return lease.Release, nil
	}}
}

// inTurn alternates between locks.
func inTurn(name string, ways []locking) locking {
	var next atomic.Int64
	return locking{name, func(ctx context.Context, name string) (func() error, error) {
		return ways[int(next.Add(1))%len(ways)].acquire(ctx, name)
	}}
}

// uncontended measures acquiring and releasing a lock without contention.
func uncontended(t *testing.T, table *Table, ways []locking) []result {
	t.Helper()
	var contenders []contender
	for _, w := range ways {
		contenders = append(contenders, contender{name: w.name, op: func(int) error {
			release, err := w.acquire(context.Background(), "uncontended")
			if err != nil {
				return err
			}
			return release()
		}})
	}
	results := contest(t, size(15, 2), 1, size(150*time.Millisecond, 5*time.Millisecond), contenders)
	for _, r := range results {
		us := make([]float64, len(r.ns))
		for i, ns := range r.ns {
			us[i] = ns / 1000
		}
		table.Row(r.name, median(us), spread(us), median(ratios(r.ns, results[0].ns)), r.allocs)
	}
	publish(t, table)
	return results
}

// redisLocker returns a Redis Locker of this library.
func redisLocker(t *testing.T, rdb *redis.Client) *lock.Locker {
	t.Helper()
	l := must(lock.NewRedis(rdb, &lock.Options{TTL: lockLife}))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

// TestLock measures an uncontended lock in Redis.
func TestLock(t *testing.T) {
	server := testenv.SharedRedis(t)
	l := redisLocker(t, redisClient(t, server))
	uncontended(t, &Table{Section: 14, Title: "A lock in Redis, uncontended",
		Text: "Acquire and release, one node, one goroutine. cacheaside has a watchdog, a fencing token from the " +
			"server's clock, and a message for waiters; redsync has none of these.",
		Head: []string{"", "us", "middle half", "of the floor", "allocations"}},
		[]locking{rawLock(redisClient(t, server)), redsyncLock("redsync", []*redis.Client{redisClient(t, server)}),
			ownLock(own, l, nil)})
}

// TestRedlock measures an uncontended lock in five Redis servers.
func TestRedlock(t *testing.T) {
	var nodes, ours []*redis.Client
	for _, server := range testenv.FiveMasters(t) {
		nodes, ours = append(nodes, redisClient(t, server)), append(ours, redisClient(t, server))
	}
	l := must(redlock.New(ours, &lock.Options{TTL: lockLife}))(t)
	t.Cleanup(func() { l.Close() })
	uncontended(t, &Table{Section: 14, Title: "Redlock, five nodes, uncontended",
		Text: "Acquire and release, one goroutine; redsync is the floor. cacheaside counts the votes with redsync's " +
			"code. Its token costs one more round of requests; NoToken avoids it.",
		Head: []string{"", "us", "middle half", "of redsync", "allocations"}},
		[]locking{redsyncLock("redsync", nodes), ownLock(own, l, nil),
			ownLock(own+", NoToken", l, &lock.AcquireOptions{NoToken: true})})
}

// TestLockContention measures a lock in Redis that 50 goroutines of a process contend for.
func TestLockContention(t *testing.T) {
	workers, grants := size(50, 10), size(4, 2)
	server := testenv.SharedRedis(t)
	raw := rawLock(redisClient(t, server))
	before := total(server.CommandCalls(t))
	floor := alternate(t, raw, workers*grants)
	each := float64(total(server.CommandCalls(t))-before) / float64(workers*grants)
	table := &Table{Section: 14, Title: fmt.Sprintf("A lock in Redis, %d workers of one process", workers),
		Text: fmt.Sprintf("Each worker holds the lock %d times, for a millisecond. The floor is a single worker that "+
			"holds it %d times with SET NX PX. redsync polls, at intervals set by its options, and stops without the "+
			"lock after a number of attempts. A wait is the time from the call to the acquisition; medians of %d "+
			"runs. Commands include those that scripts run.",
			grants, workers*grants, size(5, 1)),
		Head: []string{"", "all, s", "of the floor", "wait p50, ms", "p99, ms", "longest, ms", "not granted",
			"commands a grant"}}
	table.Row("one worker, SET NX PX", floor.Seconds(), 1.0, "–", "–", "–", 0, each)
	var five []locking
	for range 5 {
		five = append(five, ownLock(own, redisLocker(t, redisClient(t, server)), nil))
	}
	ways := []locking{
		redsyncLock("redsync, defaults: 32 tries, 50 to 250 ms apart", []*redis.Client{redisClient(t, server)}),
		redsyncLock("redsync, WithRetryDelay(10ms), WithTries(10000)", []*redis.Client{redisClient(t, server)},
			redsync.WithRetryDelay(10*time.Millisecond), redsync.WithTries(10000)),
		redsyncLock("redsync, WithRetryDelay(1ms), WithTries(100000)", []*redis.Client{redisClient(t, server)},
			redsync.WithRetryDelay(time.Millisecond), redsync.WithTries(100000)),
		ownLock(own, redisLocker(t, redisClient(t, server)), nil),
		inTurn(own+", five Lockers, as of five processes", five),
	}
	ratio := make(map[string]float64)
	for _, way := range ways {
		var all, of, p50, p99, most, commands []float64
		refused := 0
		contend(t, way, workers, 1) // connects and loads scripts
		for range size(5, 1) {
			floor := alternate(t, raw, workers*grants)
			before := total(server.CommandCalls(t))
			took, waits := contend(t, way, workers, grants)
			commands = append(commands, float64(total(server.CommandCalls(t))-before)/float64(max(1, len(waits))))
			all, of = append(all, took.Seconds()), append(of, took.Seconds()/floor.Seconds())
			p50, p99, most = append(p50, quantile(waits, 0.5)), append(p99, quantile(waits, 0.99)), append(most,
				quantile(waits, 1))
			refused += workers*grants - len(waits)
		}
		ratio[way.name] = median(of)
		table.Row(way.name, median(all), median(of), median(p50), median(p99), median(most), refused, median(commands))
		if strings.HasPrefix(way.name, own) && refused > 0 {
			t.Errorf("%s: %d acquisitions fail", way.name, refused)
		}
	}
	publish(t, table)
	bar(t, "50 contending workers, relative to one worker with a raw lock", ratio[own], 1.3)
}

func total(calls map[string]int) (n int) {
	for _, c := range calls {
		n += c
	}
	return n
}

// alternate measures how long one worker needs to hold the lock n times, for a millisecond each.
func alternate(t *testing.T, l locking, n int) time.Duration {
	t.Helper()
	began := time.Now()
	for range n {
		release := must(l.acquire(t.Context(), "contended"))(t)
		time.Sleep(time.Millisecond)
		if err := release(); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(began)
}

// contend lets each worker hold the lock grants times, for a millisecond each. It returns the total
// time, and the wait for each grant in milliseconds.
func contend(t *testing.T, l locking, workers, grants int) (took time.Duration, waits []float64) {
	t.Helper()
	var mu sync.Mutex
	var holders int
	var wg sync.WaitGroup
	began := time.Now()
	for range workers {
		wg.Go(func() {
			for range grants {
				asked := time.Now()
				release, err := l.acquire(t.Context(), "contended")
				if err != nil {
					continue // it counts as missing
				}
				wait := time.Since(asked).Seconds() * 1000
				mu.Lock()
				waits = append(waits, wait)
				if holders++; holders > 1 {
					t.Errorf("%s: two workers hold the lock", l.name)
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				holders--
				mu.Unlock()
				if err := release(); err != nil {
					t.Errorf("%s: release: %v", l.name, err)
				}
			}
		})
	}
	wg.Wait()
	took = time.Since(began)
	slices.Sort(waits)
	return took, waits
}
