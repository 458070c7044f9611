package cacheasidetest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// Redis is the embedded server of a test, and what happens to it. It is safe for concurrent use.
type Redis struct {
	server *miniredis.Miniredis
	admin  *redis.Client // out of the faults' way

	mu        sync.Mutex
	processes []*Process
	networks  []*network // also those of clients
	begin     func(*network)
}

// poolSize lets tests run many goroutines without waiting for a connection, which in a bubble would
// stop the clock.
const poolSize = 256

var noMaintenance = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

func newRedis(t testing.TB) *Redis {
	r := &Redis{server: miniredis.NewMiniRedis()}
	r.server.ClockTTL(true)
	t.Cleanup(r.server.Close)
	n := newNetwork(r.server)
	r.admin = closing(t, n.client(), n)
	return r
}

// connect makes a client with a network of its own, which is as Redis is now.
func (r *Redis) connect() (*redis.Client, *network) {
	n := newNetwork(r.server)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begin != nil {
		r.begin(n)
	}
	r.networks = append(r.networks, n)
	return n.client(), n
}

// Client makes another client of the server, for what else a program has there (locks, filters, a
// Cache with other options), or for the test's own look at the server. The client is closed with
// the test. Kill and Hang concern it, too.
func (r *Redis) Client(t testing.TB) *redis.Client {
	client, n := r.connect()
	return closing(t, client, n)
}

// Server is the server itself, for actions that this package has no name for. Do not call its
// Close, Restart and SetTime.
func (r *Redis) Server() *miniredis.Miniredis { return r.server }

// Settle waits until every process has heard of all invalidations before: from now on no memory
// serves the old values. Without Settle that is so within milliseconds, and after MaxStaleness for
// certain. (Settle sends the processes a message that means nothing, which they count in
// Stats.Bus.Malformed.) Processes that are Cut or hang are not waited for, nor are Caches that
// the test has made itself; one that has not heard after 10 seconds ends the test.
func (r *Redis) Settle(t testing.TB) {
	t.Helper()
	for _, p := range r.all() {
		p.settle(t)
	}
}

func (p *Process) settle(t testing.TB) {
	t.Helper()
	before := p.Cache.Stats().Bus
	if !before.Subscribed || p.network.fault() != "" {
		return // the former serves nothing from memory, and forgets what it has before it does again
	}
	p.Redis.server.Publish(p.options.Prefix+"::invalidations", "settle") // comes behind all that was announced
	await(t, "Settle: a process has not heard", func() bool {
		s := p.Cache.Stats().Bus
		return s.Malformed > before.Malformed || s.Subscribes > before.Subscribes || s.Disconnects > before.Disconnects
	})
	await(t, "Settle: a process does not trust its memory", p.hears)
}

// EndTTL ends the first life of all that is cached, as if the TTLs had passed: values are stale,
// and served for their LoaderOptions.StaleFor while they are loaded again, or while that fails. All
// processes forget what they have in memory. Loads under way are voided, as by Loader.Expire, which
// ends the first life of single keys.
func (r *Redis) EndTTL(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for _, key := range r.server.Keys() {
		if !r.caches(key) || r.server.Type(key) != "string" {
			continue
		}
		cmd := lease.Expire(ctx, key)
		if err := r.admin.Process(ctx, cmd); err != nil && err != redis.Nil { //nolint:errorlint // as the client gives it
			t.Fatalf("cacheasidetest: EndTTL: %v", err)
		}
	}
	r.forget(t)
}

// caches tells whether a key may be an entry of a Cache: prefix:loader:version:{key}. Those of the
// cache itself have an empty loader.
func (r *Redis) caches(key string) bool {
	parts := strings.SplitN(key, ":", 4)
	if len(parts) < 4 || parts[1] == "" || !strings.HasPrefix(parts[3], "{") {
		return false
	}
	return slices.ContainsFunc(r.all(), func(p *Process) bool { return parts[0] == p.options.Prefix })
}

// EndLife ends all lives of all that is cached, as if nobody had read anything for years: the next
// read of each key loads it. Everything that has a time to live in Redis ends, so also leases,
// holds, failure markers, and locks; keys without one stay, as filters do. All processes forget
// what they have in memory.
func (r *Redis) EndLife(t testing.TB) {
	t.Helper()
	r.server.FastForward(20 * 365 * 24 * time.Hour) // Forever is ten years there
	r.forget(t)
}

func (r *Redis) forget(t testing.TB) {
	t.Helper()
	for _, p := range r.all() {
		p.Forget(t)
	}
}

// Empty makes Redis lose all its data, as by FLUSHALL, or a restart without persistence. Memory
// tiers keep their values until they notice, within a quarter of MaxStaleness; then they forget
// them.
func (r *Redis) Empty(t testing.TB) {
	t.Helper()
	r.server.FlushAll()
	if err := r.admin.ScriptFlush(context.WithoutCancel(t.Context())).Err(); err != nil {
		t.Fatalf("cacheasidetest: Empty: %v", err)
	}
}

// Kill ends all connections, and refuses new ones, until Restore: a server that was killed, or a
// broken network. The server keeps its data; Empty it, too, for one without persistence.
func (r *Redis) Kill() { r.each((*network).cut) }

// Hang has all processes hang, until Restore (see Process.Hang): a server that was suspended.
func (r *Redis) Hang() { r.each((*network).hang) }

// Fail answers every command, reads too, with this error, until Restore: "READONLY You can't write
// against a read only replica.", "LOADING Redis is loading the dataset in memory", "OOM command not
// allowed when used memory > 'maxmemory'.". The first two are taken for a Redis out of reach,
// others for a command that has failed.
func (r *Redis) Fail(message string) { r.server.SetError(message) }

func (r *Redis) each(fault func(*network)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin = fault
	for _, n := range r.networks {
		fault(n)
	}
}

// Restore ends Kill, Hang and Fail, and all that was done to single processes, and waits until all
// have noticed, as Process.Join does.
func (r *Redis) Restore(t testing.TB) {
	t.Helper()
	r.server.SetError("")
	r.each((*network).join)
	for _, p := range r.all() {
		p.notice(t)
	}
}

func (r *Redis) all() []*Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.processes)
}
