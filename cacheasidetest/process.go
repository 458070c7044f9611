package cacheasidetest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// A Process stands for one process of an application: it has a Cache with its own client. Make
// its Loaders once, as in a program. A Process is safe for concurrent use.
type Process struct {
	Cache *cacheaside.Cache
	Redis *Redis // the server, which all processes share

	options cacheaside.Options
	network *network
}

// New starts a Redis for the test, and returns a process on it. Nil options mean the defaults,
// with one exception: if neither RedisTimeout nor ReadTimeout is set, both are 10 seconds, so
// that a slow test machine does not look like a failing Redis. Set them to less if Redis is to
// Hang outside of a bubble.
//
// The Cache is closed at the end of the test; a test may close it earlier. Invalid options fail
// the test.
func New(t testing.TB, options *cacheaside.Options) *Process {
	t.Helper()
	var o cacheaside.Options
	if options != nil {
		o = *options
	}
	o.Prefix = cmp.Or(o.Prefix, "cacheaside")
	if o.RedisTimeout == 0 && o.ReadTimeout == 0 {
		o.RedisTimeout, o.ReadTimeout = 10*time.Second, 10*time.Second
	}
	return newRedis(t).process(t, o)
}

// Process starts another process on the same Redis, with the same options. Each receives the
// invalidations of the other.
func (p *Process) Process(t testing.TB) *Process {
	t.Helper()
	return p.Redis.process(t, p.options)
}

func (r *Redis) process(t testing.TB, o cacheaside.Options) *Process {
	t.Helper()
	client, n := r.connect()
	cache, err := cacheaside.New(client, &o)
	if err != nil {
		client.Close()
		t.Fatalf("cacheasidetest: %v", err)
	}
	p := &Process{Cache: cache, Redis: r, options: o, network: n}
	r.add(p)
	t.Cleanup(func() {
		n.join() // otherwise Close would wait for commands that hang
		r.remove(p)
		cache.Close()
		client.Close()
		n.cut()
	})
	return p
}

// add registers a process with the server until it is removed, for example at the end of a
// subtest.
func (r *Redis) add(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = append(r.processes, p)
}

func (r *Redis) remove(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = slices.DeleteFunc(r.processes, func(other *Process) bool { return other == p })
}

// AwaitInvalidations waits until this process receives the invalidations of others and trusts its
// memory: values that are read afterwards are put into memory. The process subscribes at its first
// read of a Loader with a memory tier; the value of that read is not put into memory.
// AwaitInvalidations fails the test after 10 seconds if the process has made no such read, and
// immediately if it cannot reach Redis.
//
// Memory stores a value shortly after it is returned, so a test that counts Stats.MemoryHits must
// read until there is one.
func (p *Process) AwaitInvalidations(t testing.TB) {
	t.Helper()
	p.reachable(t, "AwaitInvalidations")
	await(t, "AwaitInvalidations: this process has not subscribed: it has read nothing, or only with loaders without "+
		"a memory tier", p.hears)
}

func (p *Process) hears() bool {
	s := p.Cache.Stats().Bus
	return s.Subscribed && s.Trusted == s.Ranges
}

// Forget clears the memory tier of this process, so its next reads go to Redis. It closes the
// connection of the subscription, and waits until there is a new one and memory is in use again;
// Stats.Bus shows that. Redis and other processes keep their values. For a process that has read
// nothing, Forget does nothing.
func (p *Process) Forget(t testing.TB) {
	t.Helper()
	p.reachable(t, "Forget")
	before := p.Cache.Stats().Bus
	if !before.Subscribed {
		return
	}
	p.network.cutSubscriptions()
	await(t, "Forget: this process has not subscribed again", func() bool {
		return p.Cache.Stats().Bus.Subscribes > before.Subscribes && p.hears()
	})
}

// Cut closes all connections of this process to Redis, and refuses new ones, until Join, like a
// broken network. Other processes are not affected.
func (p *Process) Cut() { p.network.cut() }

// Hang stops all traffic between this process and Redis until Join. Commands that were sent
// arrive then. Connections stay open, and new ones can be made. Reads wait for
// Options.ReadTimeout, until three in a row have failed.
func (p *Process) Hang() { p.network.hang() }

// Join ends Cut and Hang. It waits until the process has noticed, so that its next read uses Redis,
// and memory is in use again if it was before. Join does not end Redis.Fail. To find out, Join and
// Redis.Restore invalidate a key of a loader "cacheasidetest".
func (p *Process) Join(t testing.TB) {
	t.Helper()
	p.network.join()
	p.notice(t)
}

func (p *Process) notice(t testing.TB) {
	t.Helper()
	key := cacheaside.Key{Loader: "cacheasidetest", Text: "is it back?"}
	await(t, "this process does not reach Redis", func() bool {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), hang)
		defer cancel()
		return p.Cache.InvalidateKeys(ctx, key) == nil // an acknowledged write ends the outage immediately
	})
	if s := p.Cache.Stats().Bus; s.Subscribes+s.Disconnects > 0 {
		await(t, "this process does not receive invalidations again", p.hears)
	}
}

// reachable fails the test if the process cannot reach Redis.
func (p *Process) reachable(t testing.TB, address string) {
	t.Helper()
	if fault := p.network.fault(); fault != "" {
		t.Fatalf("cacheasidetest: %s of a process that %s: Join it, or Restore Redis, first", address, fault)
	}
}

// hang is how long helpers wait for an event that usually takes milliseconds.
const hang = 10 * time.Second

// await waits until done returns true, by the clock of the test's bubble if it is in one.
func await(t testing.TB, event string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(began) > hang {
			t.Fatalf("cacheasidetest: %s", event)
		}
	}
}

// client returns a client whose traffic goes through the network.
func (n *network) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Dialer:                n.dial,
		ContextTimeoutEnabled: true,
		PoolSize:              poolSize,
		MinRetryBackoff:       time.Millisecond, // the end of a fault is noticed soon
		MaxRetryBackoff:       10 * time.Millisecond,
		DisableIdentity:       true,
		// With notifications on, the client looks up its own address, which a connection in memory
		// does not have.
		MaintNotificationsConfig: noMaintenance,
	})
}

// closing closes a client of the test at the end of the test.
func closing(t testing.TB, client *redis.Client, n *network) *redis.Client {
	t.Cleanup(sync.OnceFunc(func() {
		client.Close()
		n.cut()
	}))
	return client
}
