package clients_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// do sends a command that must succeed.
func do(t *testing.T, rdb redis.UniversalClient, args ...any) {
	t.Helper()
	if err := rdb.Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// logged is a log that can be read while it is written.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) says(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), text)
}

// A server that refuses a write still serves the entry that should be invalidated: it is not read
// until it accepts writes again, for each kind of write.
func TestRefusedWrite(t *testing.T) {
	key := cacheaside.Key{Loader: "row", Text: "1"}
	writes := map[string]func(ctx context.Context, p *process) error{
		"Invalidate":     func(ctx context.Context, p *process) error { return p.rows.Invalidate(ctx, 1) },
		"Expire":         func(ctx context.Context, p *process) error { return p.rows.Expire(ctx, 1) },
		"InvalidateAll":  func(ctx context.Context, p *process) error { return p.rows.InvalidateAll(ctx) },
		"InvalidateKeys": func(ctx context.Context, p *process) error { return p.InvalidateKeys(ctx, key) },
		"Hold":           func(ctx context.Context, p *process) error { _, err := p.Hold(ctx, key); return err },
		"Refresh":        func(ctx context.Context, p *process) error { _, err := p.rows.Refresh(ctx, 1); return err },
		"committed": func(ctx context.Context, p *process) error {
			committed, err := p.rows.Inserting(ctx, 1)
			if err != nil {
				return err
			}
			return committed(ctx)
		},
	}
	refusals := map[string]struct {
		refuse []any
		info   string // that the refusal shows in
		allow  []any
		args   []string // of the server
	}{
		"READONLY":   {[]any{"replicaof", "127.0.0.1", "1"}, "role:slave", []any{"replicaof", "no", "one"}, nil},
		"NOREPLICAS": {[]any{"config", "set", "min-replicas-to-write", "1"}, "role:master", []any{"config", "set", "min-replicas-to-write", "0"}, nil},
		"MISCONF":    {[]any{"bgsave"}, "rdb_last_bgsave_status:err", []any{"config", "set", "stop-writes-on-bgsave-error", "no"}, []string{"--save", "3600 1", "--dir", "/proc"}},
	}
	for code, refusal := range refusals {
		t.Run(code, func(t *testing.T) {
			server := testenv.StartRedis(t, refusal.args...)
			admin := server.Client(t)
			for name, write := range writes {
				if code != "READONLY" && name != "Invalidate" {
					continue // each takes a second
				}
				var log logged
				d := &table{}
				o := patient()
				o.StrictWrites, o.MaxStaleness = true, time.Minute // no poll notices it
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				p := open(t, server.Client(t), d, o)
				if v, err := p.rows.Get(t.Context(), 1); v != d.version.Load() || err != nil {
					t.Fatal(v, err)
				}
				do(t, admin, refusal.refuse...)
				testenv.Eventually(t, refusal.info,
					func() bool { return strings.Contains(admin.Info(t.Context()).Val(), refusal.info) })
				d.version.Add(1)
				err := write(t.Context(), p) // READONLY also ends the connection, and the next one is refused
				if err == nil || !strings.Contains(err.Error(), code) &&
					!strings.Contains(err.Error(), "is a replica") {
					t.Errorf("%s: %v", name, err)
				}
				if n := p.Stats().RedisOut; n != 1 {
					t.Fatalf("%s: RedisOut %d", name, n)
				}
				testenv.Eventually(t, "a line in the log", func() bool { return log.says("Redis is down") })
				if v, err := p.rows.Get(t.Context(), 1, cacheaside.Fresh); v != d.version.Load() || err != nil {
					t.Errorf("%s: a Fresh read of version %d returns %d, %v", name, d.version.Load(), v, err)
				}
				do(t, admin, refusal.allow...)
				testenv.Eventually(t, "its return", func() bool { return p.Stats().RedisOut == 0 })
				if err := p.rows.Invalidate(t.Context(), 1); err != nil {
					t.Errorf("%s, after its return: %v", name, err)
				}
				p.Close()
			}
		})
	}
}

// A process that only reads notices within MaxStaleness that its server has become a replica, which
// may lack what was deleted since: its polls ask for a write.
func TestDemotedUnderAReader(t *testing.T) {
	server := testenv.StartRedis(t)
	d := &table{}
	o := patient()
	o.MaxStaleness = 2 * time.Second
	p := open(t, server.Client(t), d, o)
	testenv.Eventually(t, "all rows in Redis", func() bool { // then nothing is written but by polls
		loads := d.loads.Load()
		p.stale(t, d, cacheaside.Fresh)
		return d.loads.Load() == loads
	})
	time.Sleep(1100 * time.Millisecond) // the server is asked for its role again a second after a new connection
	p.stale(t, d, cacheaside.Fresh)     // now, and not when it is a replica
	do(t, server.Client(t), "replicaof", "127.0.0.1", "1")
	polls := func() int { return server.CommandCalls(t)["persist"] + server.CommandCalls(t)["evalsha"] }
	before := polls()
	// The client repeats a refused script up to three times, before the process gets the error.
	testenv.Eventually(t, "several polls", func() bool { return polls() >= before+20 || p.Stats().RedisOut == 1 })
	if p.Stats().RedisOut != 1 {
		t.Error("it is not noticed")
	}
	d.version.Add(1)
	if n := p.stale(t, d, cacheaside.Fresh); n > 0 {
		t.Errorf("%d of %d reads are stale", n, rows)
	}
}
