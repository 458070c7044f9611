package consistency

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var outageTime = flag.Duration("outage.time", 0,
	"for which Redis is out in TestOutage; 0: 1s, and 5m with CACHEASIDE_ACCEPT")

// TestOutage: Redis is out, or hangs, while rows are written 200 times a second. Nothing is lost,
// all writes are done before it is back, relays alert, and after Redis' return all is done. At full
// size, too: most writes do not wait for it, memory stays as it is, each relay alerts once (as
// TestRelayOutage shows on a clock of its own), and all is done soon after Redis' return.
func TestOutage(t *testing.T) { testenv.OneServerUnlessAccepting(t, outages) }

func outages(t *testing.T, e testenv.Engine) {
	m := testenv.Durable(t, e)
	kill := func(o *outage) (back func()) {
		o.server.Kill()
		return func() { o.server.Restart(o.t) }
	}
	hang := func(o *outage) (back func()) {
		o.server.Pause()
		return o.server.Resume
	}
	for _, of := range []struct {
		name  string
		level Level
		begin func(*outage) (back func())
		full  bool // at full size only; for TestRedisOut has each level with a Redis that is killed, and one that hangs
	}{{"OutboxKilled", Outbox, kill, true}, {"OutboxHung", Outbox, hang, false}, {"InlineKilled", Inline, kill, false},
		{"InlineHung", Inline, hang, true}} {
		if of.full && !testenv.Accepting {
			continue
		}
		t.Run(of.name, func(t *testing.T) {
			if !testenv.Accepting {
				t.Parallel() // where the figures are reported, they are of one at a time
			}
			o := newOutage(t, m, of.level)
			before, heap := o.writes(min(time.Second, o.length/2)), o.heap()
			back := of.begin(o)
			out := o.writes(o.length)
			o.alerted()
			depth := o.depth()
			back()
			drained := o.drained()
			o.report(before, out, heap, depth, drained)
		})
	}
}

const outageGrows = 16 << 20 // of the heap, at most

var outageRows = 1000

func init() {
	if testenv.Accepting {
		outageRows = 5000
	}
}

// outage is one run of it.
type outage struct {
	t      *testing.T
	level  Level
	length time.Duration
	every  time.Duration // a write
	server *testenv.Redis
	db     *sqlx.DB
	queue  Queue
	writer *Writer
	relays []*Relay
	alerts []*atomic.Int64
	rows   *cacheaside.Loader[int, int] // of the process that writes
	next   int                          // row to be written

	heaps  []uint64 // now and then, since it began
	errs   atomic.Int64
	queued atomic.Int64 // writes that said ErrQueued
}

func newOutage(t *testing.T, m *testenv.Database, level Level) *outage {
	// as two of them share the machine
	o := &outage{t: t, level: level, length: cmp.Or(*outageTime, time.Second), every: 20 * time.Millisecond}
	if testenv.Accepting {
		o.length, o.every = cmp.Or(*outageTime, 5*time.Minute), 5*time.Millisecond
	}
	o.server = testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "everysec")
	o.db = m.Open(t)
	o.db.SetMaxIdleConns(20)
	o.db.SetMaxOpenConns(20)
	o.exec("CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL)")
	for first := 0; first < outageRows; first += 1000 {
		o.exec("INSERT INTO item SELECT seq, 0 FROM " + testenv.Numbers(first, first+999))
	}
	cache, rows := o.process(o.hasty())
	o.rows = rows
	if level == Outbox {
		box, err := NewTestOutbox(o.db, "", "")
		o.check(err)
		o.check(box.CreateTable(t.Context()))
		o.queue = box
	} else {
		o.queue = NewMemoryQueue(outageRows / 5)
	}
	var err error
	o.writer, err = NewWriter(o.db, cache, &Options{Level: level, Queue: o.queue, NoRelay: true})
	o.check(err)
	t.Cleanup(func() { o.writer.Close() })
	other, _ := o.process(o.hasty())
	for _, c := range []*cacheaside.Cache{cache, other} { // with an outbox the second could be in another process
		o.relay(c)
	}
	return o
}

// hasty are the settings of a process that writes: those by default, or, where Redis is not out for
// long, less patient ones.
func (o *outage) hasty() cacheaside.Options {
	if testenv.Accepting {
		return cacheaside.Options{}
	}
	return cacheaside.Options{RedisTimeout: 100 * time.Millisecond}
}

func (o *outage) patient() *cacheaside.Loader[int, int] {
	_, rows := o.process(cacheaside.Options{RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang})
	return rows
}

// process is a cache, and the rows, of a process without memory: there is then nothing else that
// grows.
func (o *outage) process(of cacheaside.Options) (*cacheaside.Cache, *cacheaside.Loader[int, int]) {
	of.MemoryBytes = -1
	options := o.server.Options()
	options.ContextTimeoutEnabled = true
	rdb := redis.NewClient(options)
	o.t.Cleanup(func() { rdb.Close() })
	cache, err := cacheaside.New(rdb, &of)
	o.check(err)
	o.t.Cleanup(func() { cache.Close() })
	rows, err := cacheaside.NewBatchLoader(cache, "item", o.load,
		&cacheaside.LoaderOptions{TTL: time.Hour, Jitter: -1, EarlyRefresh: -1, BatchSize: 1000})
	o.check(err)
	return cache, rows
}

func (o *outage) load(ctx context.Context, ids []int) (map[int]int, error) {
	query, args, err := sqlx.In("SELECT id, n FROM item WHERE id IN (?)", ids)
	if err != nil {
		return nil, err
	}
	var found []struct{ ID, N int }
	if err := o.db.SelectContext(ctx, &found, o.db.Rebind(query), args...); err != nil {
		return nil, err
	}
	rows := make(map[int]int, len(found))
	for _, row := range found {
		rows[row.ID] = row.N
	}
	return rows, nil
}

func (o *outage) relay(cache *cacheaside.Cache) {
	alerts := new(atomic.Int64)
	options := &RelayOptions{OnAlert: func(Alert) { alerts.Add(1) }, Logger: slog.New(slog.DiscardHandler)}
	if !testenv.Accepting {
		options.AlertAt = 3
	}
	r, err := NewRelay(cache, o.queue, options)
	o.check(err)
	o.relays, o.alerts = append(o.relays, r), append(o.alerts, alerts)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			o.t.Error(err)
		}
	})
	o.t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// writes writes for some time, when all rows are cached, and returns how long each took. A write
// does not wait for those before.
func (o *outage) writes(length time.Duration) []time.Duration {
	n := int(length / o.every)
	took := make([]time.Duration, n)
	if o.next == 0 {
		o.warm()
	}
	var all sync.WaitGroup
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	for i := range n {
		<-tick.C
		id := o.next % outageRows
		o.next++
		all.Go(func() {
			began := time.Now()
			o.write(id)
			took[i] = time.Since(began)
		})
		if i%(n/10) == n/10-1 {
			o.heaps = append(o.heaps, o.heap())
		}
	}
	all.Wait()
	return took
}

func (o *outage) write(id int) {
	err := o.writer.Update(context.Background(), func(ctx context.Context, tx *sqlx.Tx) error {
		return execOn(ctx, tx, "UPDATE item SET n = n + 1 WHERE id = ?", id)
	}, o.rows.Key(id))
	switch {
	case errors.Is(err, ErrQueued) && o.level == Inline:
		o.queued.Add(1)
	case err != nil:
		o.errs.Add(1)
		o.t.Errorf("a write: %v", err)
	}
}

func (o *outage) warm() {
	ids := make([]int, outageRows)
	for i := range ids {
		ids[i] = i
	}
	rows, err := o.patient().GetMany(context.Background(), ids)
	if err != nil || len(rows) != outageRows {
		o.t.Fatalf("%d rows, %v", len(rows), err)
	}
}

func (o *outage) heap() uint64 {
	var s runtime.MemStats
	if !testenv.Accepting { // where two of them share it, at the cost of many collections
		return 0
	}
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

func (o *outage) depth() int {
	d, err := o.queue.Depth(context.Background())
	o.check(err)
	return d.Items
}

// alerted waits for an alert: a relay raises one after enough failed attempts.
func (o *outage) alerted() {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		silent := slices.ContainsFunc(o.alerts, func(n *atomic.Int64) bool { return n.Load() == 0 })
		if !silent || o.level == Inline && o.alerts[0].Load()+o.alerts[1].Load() > 0 {
			return
		}
		if time.Since(began) > testenv.Hang {
			o.t.Fatal("no alert")
		}
	}
}

// drained waits until the queue is empty, and returns how long that took.
func (o *outage) drained() time.Duration {
	began := time.Now()
	for o.depth() > 0 {
		if time.Since(began) > 2*testenv.Hang {
			o.t.Fatalf("%d items are still to be done", o.depth())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

func (o *outage) report(before, out []time.Duration, heap uint64, depth int, drained time.Duration) {
	t := o.t
	var alerts []int64
	for i, r := range o.relays {
		testenv.Eventually(t, "counted alerts are logged", func() bool {
			return r.Stats().Alerts == o.alerts[i].Load()
		})
		alerts = append(alerts, o.alerts[i].Load())
	}
	most := max(heap, slices.Max(o.heaps))
	end := o.heap()
	s := o.writer.Stats()
	t.Logf("%d writes while Redis was out for %v: took %s; before: %s", len(out), o.length, spread(out), spread(before))
	t.Logf("to be done when it was back: %d; done %v later; alerts of the relays: %v; queued %d keys, %d of them "+
		"without a try, ErrQueued %d; the heap: %s before, %s at most, %s in the end",
		depth, drained.Round(time.Millisecond), alerts, s.Queued, s.Skipped, o.queued.Load(), mega(heap), mega(most),
		mega(end))
	o.lost()
	if depth == 0 {
		t.Error("nothing was to be done: this has shown nothing")
	}
	if o.level == Outbox {
		o.impatient(out)
	}
	if !testenv.Accepting { // two of them share the machine, the heap, and time-outs that are short
		return
	}
	if drained > 30*time.Second {
		t.Errorf("it took %v until all was done", drained)
	}
	if most > heap+outageGrows {
		t.Errorf("the heap has grown from %s to %s", mega(heap), mega(most))
	}
	if slices.Max(alerts) > 1 {
		t.Errorf("alerts: %v", alerts)
	}
}

// impatient fails if writes have waited for Redis. Allowed are those that came before the outage
// was known (which takes four times Options.RedisTimeout, if Redis hangs), and one a second that
// tries again.
func (o *outage) impatient(took []time.Duration) {
	limit := 4 * cmp.Or(o.hasty().RedisTimeout, 500*time.Millisecond)
	waited := 0
	for _, d := range took {
		if d >= limit*3/4 {
			waited++
		}
	}
	o.t.Logf("%d writes have waited for Redis", waited)
	if atMost := int(limit/o.every) + int(o.length/time.Second) + 50; waited > atMost && testenv.Accepting {
		o.t.Errorf("%d writes have waited for Redis, more than %d", waited, atMost)
	}
	if median := quantile(0.5, took); median >= limit*3/4 && testenv.Accepting {
		o.t.Errorf("a write has taken %v, as a rule", median)
	}
}

// lost fails if a cache has forgotten to forget.
func (o *outage) lost() {
	rows := o.patient() // a process that knows nothing
	ids := make([]int, outageRows)
	for i := range ids {
		ids[i] = i
	}
	want, err := o.load(context.Background(), ids)
	o.check(err)
	got, err := rows.GetMany(context.Background(), ids)
	o.check(err)
	stale := 0
	for id, n := range want {
		if got[id] != n {
			stale++
		}
	}
	if stale > 0 {
		o.t.Errorf("%d keys of %d are stale for ever", stale, outageRows)
	}
}

// spread is how a number of times are spread.
func spread(all []time.Duration) string {
	return fmt.Sprintf("%v (median), %v (99 %%), %v (longest)", quantile(0.5, all).Round(10*time.Microsecond),
		quantile(0.99, all).Round(10*time.Microsecond), quantile(1, all).Round(time.Millisecond))
}

// quantile is one of times.
func quantile(q float64, all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func mega(n uint64) string { return fmt.Sprintf("%.1f MB", float64(n)/(1<<20)) }

func (o *outage) check(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *outage) exec(statement string) {
	o.t.Helper()
	_, err := o.db.Exec(statement)
	o.check(err)
}
