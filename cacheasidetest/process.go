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

// Process is what one process of a fleet has: a Cache, by a client of its own. Make its Loaders
// once, as in a program. A Process is safe for concurrent use.
type Process struct {
	Cache *cacheaside.Cache
	Redis *Redis // the server, which all processes share

	options cacheaside.Options
	network *network
}

// New starts a Redis that belongs to the test, and a process on it. nil options are the defaults,
// but for two: if neither is set, RedisTimeout and ReadTimeout are 10 seconds, so that a test
// machine that is slow for a moment is not taken for a Redis in trouble. Set them to less if the
// Redis is to Hang outside of a bubble.
//
// The Cache is closed with the test; a test may close it before that. Options that are not valid
// end the test.
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

// Process starts another process on the same Redis, with the same options: each hears the other's
// invalidations.
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
		n.join() // or Close would wait for what hangs
		r.remove(p)
		cache.Close()
		client.Close()
		n.cut()
	})
	return p
}

// add makes a process known to the server's helpers, until it is removed: by the end of a subtest,
// say.
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

// Hear waits until this process hears the invalidations of others, and may trust its memory: values
// read from now on are put in memory. The process begins to listen at its first read of a Loader
// with a memory tier (the value of that read is not put in memory yet). A process that has made no
// such read ends the test, after 10 seconds, and so does one whose Redis is out of reach.
//
// Memory takes a value a moment after it is given, so a test that counts Stats.MemoryHits must read
// until there is one.
func (p *Process) Hear(t testing.TB) {
	t.Helper()
	p.reachable(t, "Hear")
	await(t, "Hear: this process does not listen: it has read nothing, or nothing that is remembered", p.hears)
}

func (p *Process) hears() bool {
	s := p.Cache.Stats().Bus
	return s.Subscribed && s.Trusted == s.Ranges
}

// Forget makes the memory tier of this process forget everything: its next reads ask Redis. Forget
// ends the connection by which the process hears, and waits until there is another and memory is in
// use again; Stats.Bus shows that. Redis and other processes keep what they have. A process
// that has read nothing yet has nothing to forget.
func (p *Process) Forget(t testing.TB) {
	t.Helper()
	p.reachable(t, "Forget")
	before := p.Cache.Stats().Bus
	if !before.Subscribed {
		return
	}
	p.network.cutSubscriptions()
	await(t, "Forget: this process does not listen any more", func() bool {
		return p.Cache.Stats().Bus.Subscribes > before.Subscribes && p.hears()
	})
}

// Cut ends all connections of this process to Redis, and refuses new ones, until Join: a broken
// network. Other processes are not concerned.
func (p *Process) Cut() { p.network.cut() }

// Hang lets nothing that this process sends reach Redis, and no answer come back, until Join:
// commands that it has sent arrive then. Connections stay, and can be made. Its reads wait for
// Options.ReadTimeout, until three in a row have failed.
func (p *Process) Hang() { p.network.hang() }

// Join ends Cut and Hang, and waits until the process has noticed, so that its next read asks
// Redis, and memory is in use again if it was. Join does not end what Redis.Fail has begun. (Join
// invalidates a key of a loader "cacheasidetest" for that; so does Redis.Restore.)
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
		return p.Cache.InvalidateKeys(ctx, key) == nil // an acknowledged write tells it at once
	})
	if s := p.Cache.Stats().Bus; s.Subscribes+s.Disconnects > 0 {
		await(t, "this process does not hear any more", p.hears)
	}
}

// reachable ends the test where what it waits for could not come.
func (p *Process) reachable(t testing.TB, what string) {
	t.Helper()
	if fault := p.network.fault(); fault != "" {
		t.Fatalf("cacheasidetest: %s of a process that %s: Join it, or Restore Redis, first", what, fault)
	}
}

// hang is how long helpers wait for what comes within milliseconds.
const hang = 10 * time.Second

// await waits until done, by the clock of the test's bubble if it is in one.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(began) > hang {
			t.Fatalf("cacheasidetest: %s", what)
		}
	}
}

// client is of one process: all that it sends goes through its network.
func (n *network) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Dialer:                n.dial,
		ContextTimeoutEnabled: true,
		PoolSize:              poolSize,
		MinRetryBackoff:       time.Millisecond, // it is noticed soon that a fault is over
		MaxRetryBackoff:       10 * time.Millisecond,
		DisableIdentity:       true,
		// With notifications on, the client looks up its own address, which a connection in memory
		// does not have.
		MaintNotificationsConfig: noMaintenance,
	})
}

// closing is for clients that a test has for itself.
func closing(t testing.TB, client *redis.Client, n *network) *redis.Client {
	t.Cleanup(sync.OnceFunc(func() {
		client.Close()
		n.cut()
	}))
	return client
}
