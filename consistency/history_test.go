package consistency

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Eight processes read and write a few rows, while connections are cut, replies lost, requests
// delayed, servers stopped, and processes stopped for longer than a hold lives, and killed.

const historyProcesses = 8

// TestHistory: reads past the memory tier of rows that are written by Strict and WriteThrough are
// linearizable, key by key, whatever happens. For rows that are written by Outbox, a read that
// begins after a write reported success never returns an older value.
func TestHistory(t *testing.T) { testenv.TwoServersUnlessAccepting(t, histories) }

func histories(t *testing.T, e testenv.Engine) {
	seeds, length := 1, 2*time.Second
	if testenv.Accepting {
		seeds, length = 5, 20*time.Second
	}
	backwards := 0
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			h := newFleet(t, e, uint64(seed)).run(length)
			h.committed(t)
			h.report(t)
			keys := h.byKey(t)
			for _, key := range slices.SortedFunc(maps.Keys(keys), historyKey.compare) {
				if key.Row < historyStrict {
					h.checkStrict(t, key, keys[key])
				} else {
					backwards += h.checkOutbox(t, key, keys[key])
				}
			}
		})
	}
	t.Logf("%d reads of rows that are written by Outbox went back in time, before their writers returned: "+
		"that is allowed", backwards)
	if testenv.Accepting && backwards == 0 {
		t.Error("these faults do not show what Strict is for")
	}
}

// historyFleet is the processes, and what they need.
type historyFleet struct {
	t      *testing.T
	config historyConfig
	redis  *testenv.Redis
	server *testenv.Database
	db     *sqlx.DB
	outbox TestOutbox
	places []*historyPlace

	mu      sync.Mutex
	started int
	diaries []string
	broken  map[string]int
}

// historyPlace is a process, with its ways to the servers. If it is killed, another takes its
// place.
type historyPlace struct {
	sync.Mutex // while it is stopped or replaced
	redis, db  *testenv.Proxy
	child      *testenv.Child
}

func newFleet(t *testing.T, e testenv.Engine, seed uint64) *historyFleet {
	f := &historyFleet{t: t, config: historyConfig{Seed: seed}, redis: testenv.StartRedis(t),
		server: testenv.DatabaseOf(t, e), broken: map[string]int{}}
	f.db = f.server.Open(t)
	var err error
	f.outbox, err = NewTestOutbox(f.db, "", testSpace)
	if err == nil {
		err = f.outbox.CreateTable(t.Context())
	}
	if err == nil {
		_, err = f.db.Exec("CREATE TABLE registers (id INT PRIMARY KEY, value VARCHAR(50) NOT NULL, version BIGINT " +
			"NOT NULL)")
	}
	for row := range historyRows {
		if err == nil {
			_, err = f.db.Exec(f.db.Rebind("INSERT INTO registers VALUES (?, '', 0)"), row)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// run runs the processes with faults for length, then without until enough has happened, and puts
// their diaries together.
func (f *historyFleet) run(length time.Duration) *history {
	for range historyProcesses {
		p := &historyPlace{redis: testenv.NewProxy(f.t, f.redis.Addr), db: testenv.NewProxy(f.t, f.server.Addr)}
		f.places = append(f.places, p)
		f.spawn(p)
	}
	for _, p := range f.places {
		if line, err := p.child.ReadLine(testenv.Hang); line != "ready" {
			f.t.Fatalf("a process does not begin: %q, %v", line, err)
		}
	}
	began := monotonic()
	for _, p := range f.places {
		fmt.Fprintln(p.child.Stdin, "begin")
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	var lanes sync.WaitGroup
	for n, lane := range []func(context.Context, *rand.Rand) string{f.breakNetwork, f.breakNetwork, f.breakProcess} {
		r := rand.New(rand.NewPCG(f.config.Seed, uint64(n)))
		lanes.Go(func() {
			for ctx.Err() == nil {
				f.count(lane(ctx, r))
				locktest.Sleep(ctx, locktest.UpTo(r, 200*time.Millisecond))
			}
		})
	}
	locktest.Sleep(ctx, length)
	cancel()
	lanes.Wait()
	// On a busy machine, little has happened between the faults.
	for until := time.Now().Add(testenv.Hang); !f.read(began).enough() && time.Now().Before(until); {
		time.Sleep(100 * time.Millisecond)
	}
	for _, p := range f.places {
		fmt.Fprintln(p.child.Stdin, "end")
	}
	for _, p := range f.places {
		for {
			line, err := p.child.ReadLine(testenv.Hang)
			if line == "done" {
				break
			}
			if err != nil {
				f.t.Errorf("a process has not ended: %q, %v", line, err)
				break
			}
		}
		p.child.Kill()
	}
	f.t.Logf("broken: %v", f.broken)
	h := f.read(began)
	f.settle(h)
	return h
}

// read puts together what the processes have written down so far.
func (f *historyFleet) read(began int64) *history {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := &history{from: began}
	for _, name := range f.diaries {
		h.readDiary(f.t, name)
	}
	return h
}

func (f *historyFleet) count(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken[what]++
}

// spawn puts a process in a place.
func (f *historyFleet) spawn(p *historyPlace) {
	f.mu.Lock()
	c := f.config
	c.Process = f.started
	f.started++
	c.Redis, c.DSN = p.redis.Addr, historyDSN(f.server.DSN(f.t), f.server.Addr, p.db.Addr)
	c.Diary = filepath.Join(f.t.TempDir(), "diary")
	f.diaries = append(f.diaries, c.Diary)
	f.mu.Unlock()
	text, err := json.Marshal(c)
	if err != nil {
		f.t.Error(err)
	}
	p.child = testenv.SpawnChild(f.t, "history", "HISTORY="+string(text))
}

// breakNetwork breaks the way of some processes to one of the servers for a while.
func (f *historyFleet) breakNetwork(ctx context.Context, r *rand.Rand) string {
	kind, to := r.IntN(3), "redis"
	if r.IntN(3) == 0 {
		to = "database"
	}
	var all sync.WaitGroup
	what := make([]string, 1+r.IntN(3))
	for n := range what {
		p := f.places[r.IntN(len(f.places))]
		proxy := p.redis
		if to == "database" {
			proxy = p.db
		}
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		all.Go(func() {
			what[n] = locktest.Disturb(ctx, own, kind, proxy, nil, 2*historyLease, 8)
		})
	}
	all.Wait()
	return to + " " + what[0]
}

// breakProcess stops or kills a process, or stops a server.
func (f *historyFleet) breakProcess(ctx context.Context, r *rand.Rand) string {
	switch k := r.IntN(10); {
	case k < 2:
		return "redis " + locktest.Disturb(ctx, r, 3, nil, f.redis, historyLease, 0)
	case k < 3:
		return "database " + locktest.Disturb(ctx, r, 3, nil, f.server, historyLease, 0)
	case k < 5:
		p := f.places[r.IntN(len(f.places))]
		p.Lock()
		defer p.Unlock()
		p.child.Kill()
		locktest.Sleep(ctx, locktest.UpTo(r, historyLease))
		f.spawn(p)
		fmt.Fprintln(p.child.Stdin, "begin")
		return "process killed"
	default:
		p := f.places[r.IntN(len(f.places))]
		p.Lock()
		defer p.Unlock()
		p.child.Pause()
		locktest.Sleep(ctx, locktest.UpTo(r, 3*historyLease))
		p.child.Resume()
		return "process stopped"
	}
}

// settle reads the rows, and asserts that the caches show them, when all that was queued has been
// done: also for those who were killed.
func (f *historyFleet) settle(h *history) {
	for _, p := range f.places {
		p.redis.Cut() // and what is still on its way
		p.db.Cut()
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), testenv.Hang)
	defer cancel()
	for row := range h.final { // waits for a transaction that has not ended
		if err := f.db.GetContext(ctx, &h.final[row],
			f.db.Rebind("SELECT value, version FROM registers WHERE id = ? FOR UPDATE"), row); err != nil {
			f.t.Fatal(err)
		}
	}
	last := historian{historyConfig: historyConfig{Redis: f.redis.Addr, DSN: f.server.DSN(f.t), Patient: true,
		Process: -2}}
	if err := last.open(); err != nil {
		f.t.Fatal(err)
	}
	defer last.close()
	for {
		depth, err := f.outbox.Depth(ctx)
		if err != nil {
			f.t.Fatalf("the outbox is not emptied: %v", err)
		}
		if depth.Items == 0 {
			break
		}
		locktest.Sleep(ctx, 20*time.Millisecond)
	}
	for _, l := range []*cacheaside.Loader[int, registerRow]{last.single, last.many} {
		for row, want := range h.final {
			if got, err := l.Get(ctx, row, cacheaside.Fresh); got.Value != want.Value || err != nil {
				f.t.Errorf("%v: at the end version %d is read, %v, and version %d was written", l.Key(row), got.Version,
					err, want.Version)
			}
		}
	}
}
