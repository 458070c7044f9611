package promises

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Several processes on one real Redis.

const (
	fleetProcesses = 4
	fleetCallers   = 250
	fleetLoad      = 50 * time.Millisecond
)

func init() { testenv.RegisterChild("fleet", fleetChild) }

// order is an order to a process: Get the key with this number of concurrent callers.
type order struct {
	Key     int
	Callers int
	Load    time.Duration // duration of a load
	Fail    bool          // make the load fail
	Tell    bool          // send a message when a load has begun
}

// fleetErrorTTL outlasts any test. The test ends the window itself.
const fleetErrorTTL = time.Hour

// report is a message of a process.
type report struct {
	Began  bool // a load has begun, for an order with Tell; the report follows
	Loads  int
	Waits  []time.Duration // of each caller
	Errors map[string]int
	Stats  cacheaside.Stats
}

// fleetChild runs in a process and executes the orders on its standard input.
func fleetChild() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), PoolSize: 16})
	defer rdb.Close()
	o, _ := unhurried(patient, nil)
	if life, err := time.ParseDuration(os.Getenv("LEASE")); err == nil {
		o.LeaseTTL = life
	}
	c, err := newCache(rdb, &o)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	var mu sync.Mutex
	var now order
	out := json.NewEncoder(os.Stdout)
	l, err := cacheaside.NewLoader(c, "row", func(ctx context.Context, key int) (string, error) {
		mu.Lock()
		o := now
		if o.Tell {
			out.Encode(report{Began: true})
		}
		mu.Unlock()
		select {
		case <-time.After(o.Load):
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if o.Fail {
			return "", errors.New("broken")
		}
		return fmt.Sprint("row ", key), nil
	}, &cacheaside.LoaderOptions{ErrorTTL: fleetErrorTTL, LoadTimeout: time.Minute})
	if err != nil {
		panic(err)
	}
	rdb.Get(context.Background(), "cacheaside:warm") // opens the connection
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			panic(err)
		}
		mu.Lock()
		now = o
		mu.Unlock()
		before := l.Stats().Loads
		r := report{Waits: make([]time.Duration, o.Callers), Errors: map[string]int{}}
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range o.Callers {
			wg.Go(func() {
				<-start
				began := time.Now()
				v, err := l.Get(context.Background(), o.Key)
				r.Waits[i] = time.Since(began)
				if err == nil && v != fmt.Sprint("row ", o.Key) {
					err = errors.New("a wrong value")
				}
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					if e, ok := errors.AsType[*cacheaside.Error](err); ok {
						err = e.Err
					}
					r.Errors[err.Error()]++
				}
			})
		}
		close(start)
		wg.Wait()
		r.Stats = l.Stats()
		r.Loads = int(r.Stats.Loads - before)
		mu.Lock()
		out.Encode(r)
		mu.Unlock()
	}
}

type fleet struct {
	t        testing.TB
	redis    *testenv.Redis
	children []*testenv.Child
}

func newFleet(t testing.TB, env ...string) *fleet {
	f := &fleet{t: t, redis: testenv.SharedRedis(t)}
	for range fleetProcesses {
		f.children = append(f.children, testenv.SpawnChild(t, "fleet", append(env, "REDIS="+f.redis.Addr)...))
	}
	// Before anything is counted, each process connects and loads the scripts.
	f.collect(f.send(order{Key: -1, Callers: 1}))
	return f
}

func (f *fleet) send(o order) []*testenv.Child {
	f.t.Helper()
	b, _ := json.Marshal(o)
	for _, c := range f.children {
		if _, err := c.Stdin.Write(append(b, '\n')); err != nil {
			f.t.Fatal(err)
		}
	}
	return f.children
}

func (f *fleet) read(c *testenv.Child) (r report) {
	f.t.Helper()
	line, err := c.ReadLine(testenv.Hang)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		f.t.Fatal(err, line)
	}
	return r
}

// collect reads the final reports of an order.
func (f *fleet) collect(children []*testenv.Child) (all report) {
	f.t.Helper()
	all.Errors = map[string]int{}
	for _, c := range children {
		r := f.read(c)
		for r.Began {
			r = f.read(c)
		}
		all.Loads += r.Loads
		all.Waits = append(all.Waits, r.Waits...)
		for e, n := range r.Errors {
			all.Errors[e] += n
		}
		all.Stats.Unvalidated += r.Stats.Unvalidated
		all.Stats.RedisErrors += r.Stats.RedisErrors
		all.Stats.Refused += r.Stats.Refused
	}
	return all
}

func percentile(waits []time.Duration, p float64) time.Duration {
	slices.Sort(waits)
	return waits[min(int(float64(len(waits))*p), len(waits)-1)]
}

// A cold key that the whole fleet reads at once is loaded once. Callers get it soon after the load,
// with few Redis commands. Times and numbers of polls depend on the machine.
// TestColdKeyInFleetTakesFewTrips counts with its own clock.
func TestColdKeyInFleetIsLoadedOnce(t *testing.T) {
	f := newFleet(t)
	runs := 5
	if accepting {
		runs = 20
	}
	var p99s []time.Duration
	var commands []int
	admin := f.redis.Client(t)
	for run := range runs {
		admin.ConfigResetStat(t.Context())
		all := f.collect(f.send(order{Key: run, Callers: fleetCallers, Load: fleetLoad}))
		if all.Loads != 1 || len(all.Errors) != 0 {
			t.Fatalf("run %d: %d loads, errors %v", run, all.Loads, all.Errors)
		}
		n := 0
		for _, calls := range f.redis.CommandCalls(t) {
			n += calls
		}
		p99s = append(p99s, percentile(all.Waits, 0.99))
		commands = append(commands, n)
	}
	slices.Sort(commands)
	p99, median := percentile(p99s, 0.5), commands[len(commands)/2]
	t.Logf("%d runs of %d processes x %d callers, load %v: 1 load in each; median p99 of the callers %v (%v after "+
		"the load), worst %v; median Redis commands %d, most %d",
		runs, fleetProcesses, fleetCallers, fleetLoad, p99, p99-fleetLoad, p99s[len(p99s)-1], median,
		commands[len(commands)-1])
	if accepting && median > 60 {
		t.Errorf("a median of %d Redis commands: %v", median, f.redis.CommandCalls(t))
	}
	if accepting && p99 > fleetLoad+8*time.Millisecond && !raceEnabled {
		t.Errorf("the median p99 of the callers is %v after the load, want 8ms", p99-fleetLoad)
	}
}

// ownClients returns clients of one embedded Redis, one for each process, each with a hook.
func ownClients[H redis.Hook](t testing.TB, b backend, n int, hook func() H) (clients []*redis.Client, hooks []H) {
	for range n {
		o := *b.admin.(*redis.Client).Options()
		rdb, h := redis.NewClient(&o), hook()
		rdb.AddHook(h)
		t.Cleanup(func() { rdb.Close() })
		clients, hooks = append(clients, rdb), append(hooks, h)
	}
	return clients, hooks
}

// The same in processes with one clock: the trips to Redis are counted, and the waits of callers
// are exact.
func TestColdKeyInFleetTakesFewTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		clients, counts := ownClients(t, b, fleetProcesses, func() *trips { return new(trips) })
		d := newTable(map[int]string{1: "one"})
		d.read = sleeps(fleetLoad)
		var fleet []process
		for _, rdb := range clients {
			p := startOn(t, rdb, d, cacheaside.Options{RedisTimeout: 10 * time.Second, MaxStaleness: time.Minute}, nil)
			defer p.cache.Close()
			hear(t, p.Loader)
			p.want(t, -1, "", cacheaside.ErrNotFound) // opens connections
			fleet = append(fleet, p)
		}
		d.loads.Store(0)
		for _, count := range counts {
			count.n.Store(0)
		}
		began := time.Now()
		var longest atomic.Int64
		var all sync.WaitGroup
		for i := range fleetProcesses * fleetCallers {
			all.Go(func() {
				fleet[i%fleetProcesses].want(t, 1, "one", nil)
				raise(&longest, int64(time.Since(began)))
			})
		}
		all.Wait()
		n := int64(0)
		for _, count := range counts {
			n += count.n.Load()
		}
		t.Logf("%d trips, the longest wait %v after the load", n, time.Duration(longest.Load())-fleetLoad)
		if loads := d.loads.Load(); loads != 1 {
			t.Errorf("%d loads", loads)
		}
		if n > 60 {
			t.Errorf("%d trips to Redis", n)
		}
		if late := time.Duration(longest.Load()) - fleetLoad; late > 8*time.Millisecond {
			t.Errorf("a caller waits until %v after the load", late)
		}
	})
}

// The process that loads dies. The others load once more when its lease has expired. Here the
// process is disconnected, and its load never ends.
func TestDeadLeaseHolderIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		clients, silences := ownClients(t, b, fleetProcesses, func() *silence { return new(silence) })
		d := newTable(map[int]string{1: "one"})
		dead := make(chan struct{})
		d.read = func(ctx context.Context, n int64) error {
			if n == 1 {
				<-dead
				return errBroken
			}
			time.Sleep(time.Second)
			return nil
		}
		var fleet []process
		for _, rdb := range clients {
			p := startOn(t, rdb, d, patient, &cacheaside.LoaderOptions{LoadTimeout: time.Hour})
			defer p.cache.Close()
			hear(t, p.Loader)
			fleet = append(fleet, p)
		}
		defer close(dead)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go fleet[0].Get(ctx, 1)
		synctest.Wait()
		if n := d.loads.Load(); n != 1 {
			t.Fatalf("%d loads", n)
		}
		var all sync.WaitGroup
		var longest atomic.Int64
		var began time.Time
		for i := range 3 * fleetCallers {
			all.Go(func() {
				fleet[1+i%3].want(t, 1, "one", nil)
				raise(&longest, time.Now().UnixNano())
			})
		}
		time.Sleep(5 * time.Second) // the lease is renewed in this time
		if n := d.loads.Load(); n != 1 {
			t.Errorf("%d loads during the first load", n)
		}
		began = time.Now()
		silences[0].on.Store(true)
		all.Wait()
		const life = 2 * time.Second // Options.LeaseTTL
		took := time.Duration(longest.Load() - began.UnixNano())
		t.Logf("the other processes are served %v after the holder's death", took)
		if n := d.loads.Load(); n != 2 {
			t.Errorf("%d loads", n)
		}
		if took > life+time.Second+200*time.Millisecond {
			t.Errorf("the other processes are served %v after the holder's death", took)
		}
	})
}

// A failed load is not repeated by the thousand callers that wait for it, nor by callers within
// ErrorTTL.
func TestFailedLoadIsNotRepeatedInFleet(t *testing.T) {
	f := newFleet(t)
	admin := f.redis.Client(t)
	for round := range 2 {
		all := f.collect(f.send(order{Key: 1, Callers: fleetCallers, Load: fleetLoad, Fail: true}))
		more := f.collect(f.send(order{Key: 1, Callers: 10, Load: fleetLoad, Fail: true}))
		if all.Loads != 1 || more.Loads != 0 {
			t.Errorf("round %d: %d loads, then %d", round, all.Loads, more.Loads)
		}
		// The latter in the process of the load.
		refused := all.Errors[cacheaside.ErrLoadFailed.Error()] +
			all.Errors[cacheaside.ErrLoadFailed.Error()+": broken"]
		if refused+all.Errors["broken"] != fleetProcesses*fleetCallers || all.Errors["broken"] == 0 {
			t.Errorf("round %d: %v", round, all.Errors)
		}
		if life := admin.PTTL(t.Context(), redisKey(1)).Val(); life <= 0 || life > fleetErrorTTL {
			t.Errorf("round %d: the marker has a TTL of %v", round, life)
		}
		if !admin.PExpire(t.Context(), redisKey(1), time.Millisecond).Val() {
			t.Error("the marker is missing")
		}
		// The window has ended.
		waitFor(t, func() bool { return admin.Exists(t.Context(), redisKey(1)).Val() == 0 })
	}
}

// The process that loads is killed. The others load once more when its lease has expired.
// TestDeadLeaseHolderIsReplaced measures how long that takes.
func TestKilledLeaseHolderIsReplaced(t *testing.T) {
	life := 2 * time.Second // the default of Options.LeaseTTL
	// On a busy machine too, the next holder renews its lease within that time.
	if !testenv.Accepting {
		life = 6 * time.Second
	}
	f := newFleet(t, "LEASE="+life.String())
	f.send(order{Key: 1, Callers: fleetCallers, Load: time.Second, Tell: true})
	holder := f.holder()
	began := time.Now()
	f.children[holder].Kill()
	rest := slices.Delete(slices.Clone(f.children), holder, holder+1)
	all := f.collect(rest)
	took := time.Since(began)
	t.Logf("holder killed: %d more loads, the others are served after %v (lease %v, load 1 s)", all.Loads, took, life)
	if all.Loads != 1 || len(all.Errors) != 0 {
		t.Errorf("%d more loads, errors %v", all.Loads, all.Errors)
	}
	if took > life+time.Second+300*time.Millisecond*slack && testenv.Accepting {
		t.Errorf("the other processes are served %v after the kill", took)
	}
}

// holder waits until one of the processes reports a load.
func (f *fleet) holder() int {
	f.t.Helper()
	for deadline := time.Now().Add(testenv.Hang); time.Now().Before(deadline); {
		for i, c := range f.children {
			if line, err := c.ReadLine(20 * time.Millisecond); err == nil && strings.Contains(line, `"Began":true`) {
				return i
			}
		}
	}
	f.t.Fatal("no process loads")
	return 0
}
