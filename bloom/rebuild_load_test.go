package bloom

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// load is the load on a filter: reads of keys that exist and of keys that do not, and inserts of
// rows.
type load struct {
	t    *testing.T
	f    *Redis
	db   *sql.DB
	rows atomic.Int64 // keys 1 to rows are there
	next atomic.Int64
}

const (
	readers      = 8
	readsASecond = 2000
	inserts      = 100 // in a second
)

// bear reads and inserts while work runs. It returns how long each read took.
func (l *load) bear(work func()) (took []time.Duration) {
	ctx, stop := context.WithCancel(l.t.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	for range readers {
		all.Go(func() {
			mine := l.read(ctx)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
		})
	}
	all.Go(func() {
		every(ctx, time.Second/inserts, l.insert)
	})
	work()
	stop()
	all.Wait()
	slices.Sort(took)
	return took
}

// every calls f at a pace, not in time with others.
func every(ctx context.Context, pace time.Duration, f func()) {
	time.Sleep(rand.N(pace))
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

func (l *load) read(ctx context.Context) (took []time.Duration) {
	every(ctx, time.Second*readers/readsASecond, func() {
		present := rand.IntN(2) == 0
		key := "absent" + strconv.Itoa(rand.Int())
		if present {
			key = strconv.FormatInt(1+rand.Int64N(l.rows.Load()), 10)
		}
		began := time.Now()
		maybe, err := l.f.MightContain(l.t.Context(), key)
		took = append(took, time.Since(began))
		if present && !maybe || err != nil {
			l.t.Errorf("%v, %v", maybe, err)
		}
	})
	return took
}

// insert is a transaction.
func (l *load) insert() {
	ctx := l.t.Context()
	key := strconv.FormatInt(l.next.Add(1), 10)
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		l.t.Error(err)
		return
	}
	defer tx.Rollback() // nothing, after Commit
	_, err = tx.ExecContext(ctx, "INSERT INTO users VALUES (?)", key)
	if err != nil {
		l.t.Error(err)
		return
	}
	committed, err := l.f.Inserting(ctx, []string{key})
	if err == nil {
		err = tx.Commit()
	}
	if err == nil {
		err = committed(ctx)
	}
	if err != nil {
		l.t.Error(err)
		return
	}
	if maybe, err := l.f.MightContain(ctx, key); !maybe || err != nil {
		l.t.Errorf("%s, inserted: %v, %v", key, maybe, err)
	}
	l.rows.Add(1)
}

// memory samples the greatest use of it while work runs.
func memory(t *testing.T, rdb redis.UniversalClient, work func()) (server, heap uint64) {
	ctx, stop := context.WithCancel(t.Context())
	var sampled sync.WaitGroup
	sampled.Go(func() {
		every(ctx, 100*time.Millisecond, func() {
			m := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
			metrics.Read(m)
			heap, server = max(heap, m[0].Value.Uint64()), max(server, used(t, rdb))
		})
	})
	work()
	stop()
	sampled.Wait()
	return server, heap
}

// used is the memory of a server.
func used(t testing.TB, rdb redis.Cmdable) uint64 {
	info, err := rdb.Info(context.WithoutCancel(t.Context()), "memory").Result()
	if err != nil {
		t.Error(err)
	}
	_, n, _ := strings.Cut(info, "used_memory:")
	n, _, _ = strings.Cut(n, "\r\n")
	bytes, err := strconv.ParseUint(n, 10, 64)
	if err != nil {
		t.Error(err)
	}
	return bytes
}

func percentile(took []time.Duration, p float64) time.Duration {
	return took[int(p*float64(len(took)-1))]
}

// TestRebuildUnderLoad: a rebuild from a table hides nothing, and, at a rate, disturbs those who
// read little.
func TestRebuildUnderLoad(t *testing.T) {
	n, keysASecond := int64(20_000), 0
	if testenv.Accepting {
		n, keysASecond = 5_000_000, 100_000
	}
	rdb := testenv.SharedRedis(t).Client(t)
	db := testenv.SharedMariaDB(t).DB(t)
	run(t, db, "CREATE TABLE users (id BIGINT PRIMARY KEY)")
	run(t, db, "INSERT INTO users SELECT seq FROM seq_1_to_"+strconv.FormatInt(n, 10))
	f := newFilter(t, rdb, uint64(n)+100_000)
	source := Table[int64](db, "users", "id")
	report, err := f.Rebuild(t.Context(), source, none)
	must(t, err)
	t.Logf("%d keys in %v, without load", report.Keys, report.Took.Round(time.Millisecond))

	o, length := &RebuildOptions{Settle: 200 * time.Millisecond, Rate: keysASecond}, 500*time.Millisecond
	if testenv.Accepting {
		length = time.Duration(n) * time.Second / time.Duration(keysASecond)
	}
	l := &load{t: t, f: f, db: db}
	l.rows.Store(n)
	l.next.Store(n)
	before := used(t, rdb)
	idle := func() { memory(t, rdb, func() { time.Sleep(length / 2) }) }
	quiet := l.bear(idle)
	var server, heap uint64
	busy := l.bear(func() {
		server, heap = memory(t, rdb, func() { report, err = f.Rebuild(t.Context(), source, o) })
	})
	must(t, err)
	quiet = append(quiet, l.bear(idle)...) // half of it before, half behind: the machine has other work
	slices.Sort(quiet)
	t.Logf("%d keys in %v; reads: %d before and behind, p50 %v, p99 %v; %d meanwhile, p50 %v, p99 %v: %.2f times",
		report.Keys, report.Took.Round(time.Millisecond), len(quiet), percentile(quiet, 0.5), percentile(quiet, 0.99),
		len(busy), percentile(busy, 0.5), percentile(busy,
			0.99), float64(percentile(busy, 0.99))/float64(percentile(quiet, 0.99)))
	t.Logf("Redis: %d MB before, %d at most, %d after; heap of this process: %d MB at most", before>>20, server>>20,
		used(t, rdb)>>20, heap>>20)
	if testenv.Accepting && float64(percentile(busy, 0.99)) > 1.3*float64(percentile(quiet, 0.99)) {
		t.Error("it disturbs those who read")
	}
	var keys []string
	for key, err := range source(t.Context(), "") {
		must(t, err)
		keys = append(keys, key)
	}
	if int64(len(keys)) != l.next.Load() {
		t.Errorf("%d rows of %d", len(keys), l.next.Load())
	}
	for part := range slices.Chunk(keys, 10_000) {
		mustHave(t, f, part, "rebuilt under load")
	}
}

// TestHugeFilter: one of more than 2^33 bits takes memory for what is in it.
func TestHugeFilter(t *testing.T) {
	capacity := uint64(12_000_000)
	if testenv.Accepting {
		capacity = 896_200_000 // at 1 %
	}
	t.Run("redis", func(t *testing.T) {
		r := testenv.SharedRedis(t)
		rdb := r.Client(t)
		f := newFilter(t, rdb, capacity)
		before := used(t, rdb)
		began := time.Now()
		g, err := f.begin(t.Context(), f.capacity)
		must(t, err)
		must(t, f.prepare(t.Context(), g))
		prepared := time.Since(began)
		must(t, f.AddMany(t.Context(), numbered(1000)))
		began = time.Now()
		must(t, f.activate(t.Context(), g))
		t.Logf("%d bits, %d segments: prepared in %v, put in place in %v", g.shape().Total(), g.Segments,
			prepared.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		if testenv.Accepting && g.shape().Total() < 1<<33 {
			t.Error("it is not huge")
		}
		grown := used(t, rdb) - before
		t.Logf("%d MB for 1000 keys", grown>>20)
		if grown > 64<<20 {
			t.Errorf("%d bytes", grown)
		}
		mustHave(t, f, numbered(1000), "huge")
		began = time.Now()
		_, err = f.Rebuild(t.Context(), Keys(numbered(1000)...), none)
		must(t, err)
		t.Logf("rebuilt, and the one before removed, in %v", time.Since(began).Round(time.Millisecond))
		mustHave(t, f, numbered(1000), "rebuilt")
		mustBeWhole(t, f)
	})
	t.Run("cluster", func(t *testing.T) {
		rdb := testenv.SharedCluster(t).Client(t)
		f := newFilter(t, rdb, capacity)
		_, err := f.Rebuild(t.Context(), Keys(numbered(1000)...), none)
		must(t, err)
		mustHave(t, f, numbered(1000), "on a cluster")
		var mu sync.Mutex
		var total int64
		var sizes []int64
		must(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
			n, err := c.DBSize(ctx).Result()
			mu.Lock()
			defer mu.Unlock()
			total, sizes = total+n, append(sizes, n)
			return err
		}))
		t.Logf("keys on the masters: %v", sizes)
		for _, n := range sizes {
			if share := float64(n) / float64(total); share < 0.2 || share > 0.47 {
				t.Errorf("%d of %d", n, total)
			}
		}
	})
}
