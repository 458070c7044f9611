package cacheaside

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
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

// Several processes, on one real Redis.

const (
	fleetProcesses = 4
	fleetCallers   = 250
	fleetLoad      = 50 * time.Millisecond
)

func init() { testenv.RegisterChild("fleet", fleetChild) }

// order is what the test tells a process to do: Get the key at once by so many callers.
type order struct {
	Key     int
	Callers int
	Load    time.Duration // how long a load takes
	Fail    bool          // whether it fails
	Tell    bool          // say when a load has begun
}

// report is what the process answers.
type report struct {
	Began  bool // an order with Tell: a load has begun; the report follows
	Loads  int
	Waits  []time.Duration // of each caller
	Errors map[string]int
	Stats  Stats
}

// fleetChild is one process: it obeys the orders on its standard input.
func fleetChild() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), PoolSize: 16})
	defer rdb.Close()
	c, err := New(rdb, &Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	var mu sync.Mutex
	var now order
	out := json.NewEncoder(os.Stdout)
	l, err := NewLoader(c, "row", func(ctx context.Context, key int) (string, error) {
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
	}, &LoaderOptions{ErrorTTL: 3 * time.Second, LoadTimeout: time.Minute})
	if err != nil {
		panic(err)
	}
	rdb.Get(context.Background(), "cacheaside:warm") // the connection
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
					if e, ok := errors.AsType[*Error](err); ok {
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

func newFleet(t testing.TB) *fleet {
	f := &fleet{t: t, redis: testenv.SharedRedis(t)}
	for range fleetProcesses {
		f.children = append(f.children, testenv.SpawnChild(t, "fleet", "REDIS="+f.redis.Addr))
	}
	// Each has connected, and the scripts are loaded, before anything is counted.
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
	line, err := c.ReadLine(30 * time.Second)
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

// A cold key that the whole fleet asks for at once is loaded once; callers get it little later than the load ends, and Redis is hardly
// asked.
func TestBreakdown(t *testing.T) {
	f := newFleet(t)
	runs := 20
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
	t.Logf("%d runs of %d processes x %d callers, load %v: 1 load in each; median p99 of the callers %v (%v after the load), worst %v; median Redis commands %d, most %d",
		runs, fleetProcesses, fleetCallers, fleetLoad, p99, p99-fleetLoad, p99s[len(p99s)-1], median, commands[len(commands)-1])
	if median > 60 {
		t.Errorf("a median of %d Redis commands: %v", median, f.redis.CommandCalls(t))
	}
	if p99 > fleetLoad+8*time.Millisecond && !raceEnabled {
		t.Errorf("the median p99 of the callers is %v after the load", p99-fleetLoad)
	}
}

// The process that loads is killed: the others load once more, when its lease has run out, which takes no longer than the lease's life.
func TestBreakdownHolderKilled(t *testing.T) {
	f := newFleet(t)
	f.send(order{Key: 1, Callers: fleetCallers, Load: time.Second, Tell: true})
	holder := f.holder()
	began := time.Now()
	f.children[holder].Kill()
	rest := slices.Delete(slices.Clone(f.children), holder, holder+1)
	all := f.collect(rest)
	const life = 2 * time.Second // Options.LeaseTTL
	took := time.Since(began)
	t.Logf("the holder killed: %d more load, the rest served %v after (lease %v, load 1 s)", all.Loads, took, life)
	if all.Loads != 1 || len(all.Errors) != 0 {
		t.Errorf("%d more loads, errors %v", all.Loads, all.Errors)
	}
	if took > life+time.Second+300*time.Millisecond*slack {
		t.Errorf("the rest was served %v after the kill", took)
	}
}

// holder waits until one of the processes says that it loads.
func (f *fleet) holder() int {
	f.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		for i, c := range f.children {
			if line, err := c.ReadLine(20 * time.Millisecond); err == nil && strings.Contains(line, `"Began":true`) {
				return i
			}
		}
	}
	f.t.Fatal("nobody loads")
	return 0
}

// A load that fails is not tried again by the thousand who wait for it, nor by those who come within the error window.
func TestBreakdownLoadFails(t *testing.T) {
	f := newFleet(t)
	for window := range 2 {
		began := time.Now()
		all := f.collect(f.send(order{Key: 1, Callers: fleetCallers, Load: fleetLoad, Fail: true}))
		more := f.collect(f.send(order{Key: 1, Callers: 10, Load: fleetLoad, Fail: true}))
		if took := time.Since(began); took > 2800*time.Millisecond {
			t.Fatalf("this machine is too slow to tell: %v", took)
		}
		if all.Loads != 1 || more.Loads != 0 {
			t.Errorf("window %d: %d loads, then %d", window, all.Loads, more.Loads)
		}
		if all.Errors[ErrLoadFailed.Error()]+all.Errors["broken"] != fleetProcesses*fleetCallers || all.Errors["broken"] == 0 {
			t.Errorf("window %d: %v", window, all.Errors)
		}
		time.Sleep(time.Until(began.Add(3500 * time.Millisecond)))
	}
}
