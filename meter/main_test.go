package meter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// rows stand in for a database.
type rows struct {
	mu     sync.Mutex
	values map[int]string
	loads  atomic.Int64
	load   func(ctx context.Context, key int) error // if set, called before each load
}

func newRows() *rows { return &rows{values: make(map[int]string)} }

func (r *rows) write(key int, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values[key] = value
}

// loading makes each load call f first.
func (r *rows) loading(f func(ctx context.Context, key int) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load = f
}

func (r *rows) get(ctx context.Context, key int) (string, error) {
	r.loads.Add(1)
	r.mu.Lock()
	v, ok := r.values[key]
	load := r.load
	r.mu.Unlock()
	if key < 0 {
		return "", errors.New("not a key")
	}
	if load != nil {
		if err := load(ctx, key); err != nil {
			return "", err
		}
	}
	if !ok {
		return "", cacheaside.ErrNotFound
	}
	return v, nil
}

// member is one process of a fleet.
type member struct {
	*cacheaside.Loader[int, string]
	cache *cacheaside.Cache
}

var patient = cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second}

// noMemory are patient options for a process without a memory tier.
var noMemory = cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, MemoryBytes: -1}

func join(t testing.TB, rdb redis.UniversalClient, d *rows, o cacheaside.Options) member {
	t.Helper()
	c, err := cacheaside.New(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "row", d.get,
		&cacheaside.LoaderOptions{EarlyRefresh: -1, MemoryTTL: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return member{l, c}
}

// hear waits until m's process trusts its memory tier. It stores nothing there.
func (m member) hear(t testing.TB) member {
	t.Helper()
	testenv.Eventually(t, "memory is trusted", func() bool {
		m.Get(t.Context(), -1)
		s := m.Stats().Bus
		return s.Trusted == s.Ranges
	})
	return m
}

func (m member) want(t testing.TB, key int, want string) {
	t.Helper()
	if got, err := m.Get(t.Context(), key); err != nil || got != want {
		t.Fatalf("Get(%d) = %q, %v; want %q", key, got, err, want)
	}
}

// thief is a hook of a writer's client. It drops the selected parts of an invalidation of one key
// and reports success, as if they were lost between the writer and Redis.
type thief struct {
	deletes, announcements func(name string) bool // by the key's name in Redis
	stolen                 atomic.Int64           // invalidations
}

func never(string) bool { return false }

func (*thief) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*thief) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (t *thief) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) != 2 || cmds[0].Name() != "del" || !strings.HasPrefix(cmds[1].Name(), "eval") {
			return next(ctx, cmds)
		}
		name := fmt.Sprint(cmds[0].Args()[1])
		var sent []redis.Cmder
		if t.deletes(name) {
			cmds[0].(interface{ SetVal(int64) }).SetVal(1)
		} else {
			sent = append(sent, cmds[0])
		}
		if t.announcements(name) {
			cmds[1].(interface{ SetVal(any) }).SetVal("1")
		} else {
			sent = append(sent, cmds[1])
		}
		if len(sent) < len(cmds) {
			t.stolen.Add(1)
		}
		if len(sent) == 0 {
			return nil
		}
		return next(ctx, sent)
	}
}

func nameOf(key int) string { return fmt.Sprintf("cacheaside:row:1:{%d}", key) }

// all is a draw that samples every write.
func all() float64 { return 0 }

// seeded returns a reproducible draw.
func seeded(seed uint64) func() float64 {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 0))
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return r.Float64()
	}
}
