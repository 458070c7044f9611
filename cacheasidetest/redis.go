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

	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// Redis is the embedded server of a test. Its methods cause and end faults. It is safe for
// concurrent use.
type Redis struct {
	server *miniredis.Miniredis
	admin  *redis.Client // not affected by faults

	mu        sync.Mutex
	processes []*Process
	networks  []*network // including those of clients
	begin     func(*network)
}

// poolSize lets tests run many goroutines without waiting for a connection, which would stop the
// clock in a bubble.
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

// connect returns a client with a new network, which has the current fault of Redis.
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

// Client returns another client of the server, for other uses of Redis in a program (locks,
// filters, a Cache with other options), or for commands of the test. It is closed at the end of
// the test. Kill and Hang affect it too.
func (r *Redis) Client(t testing.TB) *redis.Client {
	client, n := r.connect()
	return closing(t, client, n)
}

// Server returns the server, for actions that this package does not have. Do not call its Close,
// Restart and SetTime.
func (r *Redis) Server() *miniredis.Miniredis { return r.server }

// Settle waits until every process has received all previous invalidations, so that no memory
// serves the old values. Without Settle that takes milliseconds, and at most MaxStaleness. Settle
// sends the processes a message without meaning, which they count in Stats.Bus.Malformed and do
// not log. It does not wait for processes that are Cut or hang, or for Caches that the test has
// made directly. It fails the test if a process has not received the message after 10 seconds.
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
		return // without a subscription memory serves nothing, and is cleared before it does again
	}
	// arrives after all previous announcements
	p.Redis.server.Publish(p.options.Prefix+"::invalidations", invalidation.NoMessage)
	await(t, "Settle: a process has not received the message", func() bool {
		s := p.Cache.Stats().Bus
		return s.Malformed > before.Malformed || s.Subscribes > before.Subscribes || s.Disconnects > before.Disconnects
	})
	await(t, "Settle: a process does not trust its memory", p.hears)
}

// EndTTL ends the freshness of all cached values, as if their TTLs had passed: they are stale,
// and served for their LoaderOptions.StaleFor while they are reloaded, or while that fails. All
// processes clear their memory. Loads in progress are repeated, as after Loader.Expire, which
// ends the freshness of single keys.
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

// caches reports whether a key may be an entry of a Cache: prefix:loader:version:{key}. The
// loader is empty in the keys of the cache itself.
func (r *Redis) caches(key string) bool {
	parts := strings.SplitN(key, ":", 4)
	if len(parts) < 4 || parts[1] == "" || !strings.HasPrefix(parts[3], "{") {
		return false
	}
	return slices.ContainsFunc(r.all(), func(p *Process) bool { return parts[0] == p.options.Prefix })
}

// EndLife expires all cached values, as if nothing had been read for years: the next read of each
// key loads it. Everything that has a TTL in Redis expires, including leases, holds, failure
// markers and locks. Keys without a TTL stay, for example filters. All processes clear their
// memory.
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
// tiers keep their values until they notice, within a quarter of MaxStaleness, and are cleared
// then.
func (r *Redis) Empty(t testing.TB) {
	t.Helper()
	r.server.FlushAll()
	if err := r.admin.ScriptFlush(context.WithoutCancel(t.Context())).Err(); err != nil {
		t.Fatalf("cacheasidetest: Empty: %v", err)
	}
}

// Kill closes all connections, and refuses new ones, until Restore, like a killed server or a
// broken network. The server keeps its data; also call Empty for a server without persistence.
func (r *Redis) Kill() { r.each((*network).cut) }

// Hang makes the connections of all processes hang until Restore (see Process.Hang), like a
// suspended server.
func (r *Redis) Hang() { r.each((*network).hang) }

// Fail makes every command, including reads, return this error until Restore, for example
// "READONLY You can't write against a read only replica.", "LOADING Redis is loading the dataset
// in memory" or "OOM command not allowed when used memory > 'maxmemory'.". For the first two
// Redis counts as down; other errors are failures of single commands.
func (r *Redis) Fail(message string) { r.server.SetError(message) }

func (r *Redis) each(fault func(*network)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin = fault
	for _, n := range r.networks {
		fault(n)
	}
}

// Restore ends Kill, Hang and Fail, and the faults of single processes. It waits until all
// processes have noticed, as Process.Join does.
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
