// Package fleet measures what a fleet of many processes costs Redis.
package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const prefix = "fleet"

// service is one Redis, or a cluster.
type service struct {
	name   string
	nodes  []*testenv.Redis
	listen []string // addresses at which processes subscribe
	client redis.UniversalClient
}

func oneRedis(t *testing.T) *service {
	r := testenv.StartRedis(t)
	o := r.Options()
	o.PoolSize, o.ContextTimeoutEnabled = 200, true
	return newService(t, "one Redis", []*testenv.Redis{r}, []string{r.Addr}, redis.NewClient(o))
}

func cluster(t *testing.T) *service {
	c := testenv.StartCluster(t, 5*time.Second)
	o := c.Options()
	o.PoolSize, o.ContextTimeoutEnabled = 200, true
	return newService(t, "a cluster", c.Nodes, c.Addrs[:3], redis.NewClusterClient(o))
}

func newService(t *testing.T, name string, nodes []*testenv.Redis, listen []string, c redis.UniversalClient) *service {
	t.Cleanup(func() { c.Close() })
	return &service{name, nodes, listen, c}
}

// usage holds what the servers have used since their start.
type usage struct {
	at       time.Time
	cpu      []float64 // of each node, microseconds
	commands float64   // of all nodes; those of scripts count
}

func (s *service) usage(t *testing.T) usage {
	t.Helper()
	u := usage{at: time.Now()}
	for _, node := range s.nodes {
		c := redis.NewClient(node.Options())
		info, err := c.Info(t.Context(), "cpu", "stats").Result()
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]float64{}
		for line := range strings.Lines(info) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				fields[name], _ = strconv.ParseFloat(value, 64)
			}
		}
		u.cpu = append(u.cpu, 1e6*(fields["used_cpu_user"]+fields["used_cpu_sys"]))
		u.commands += fields["total_commands_processed"]
	}
	return u
}

// rate holds what the servers use in a second.
type rate struct {
	cpu      []float64 // of each node, microseconds
	commands float64
}

// since returns the usage in a second since an earlier one.
func (u usage) since(earlier usage) (r rate) {
	seconds := u.at.Sub(earlier.at).Seconds()
	for i, cpu := range u.cpu {
		r.cpu = append(r.cpu, (cpu-earlier.cpu[i])/seconds)
	}
	r.commands = (u.commands - earlier.commands) / seconds
	return r
}

func sum(v []float64) (total float64) {
	for _, x := range v {
		total += x
	}
	return total
}

// quantile returns a quantile of sorted values, or 0 without values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

// figure formats a number with two significant digits at least.
func figure(f float64) string {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return "–"
	case f < 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	default:
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
}

// row logs a row of a table: accept.sh keeps the lines that begin with the name of a file.
func row(t *testing.T, cells ...any) {
	t.Helper()
	texts := make([]string, len(cells))
	for i, cell := range cells {
		if f, ok := cell.(float64); ok {
			cell = figure(f)
		}
		texts[i] = fmt.Sprint(cell)
	}
	t.Log("| " + strings.Join(texts, " | ") + " |")
}

// gets sends a GET every four milliseconds until stop is called. stop returns the sorted times in
// milliseconds.
func (s *service) gets(t *testing.T) (stop func() []float64) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []float64)
	go func() {
		var took []float64
		for i := 0; ctx.Err() == nil; i++ {
			began := time.Now()
			if err := s.client.Get(context.Background(), "none-"+strconv.Itoa(i%64)).Err(); err == redis.Nil {
				took = append(took, float64(time.Since(began).Microseconds())/1000)
			}
			time.Sleep(4 * time.Millisecond)
		}
		slices.Sort(took)
		done <- took
	}()
	return func() []float64 {
		cancel()
		return <-done
	}
}

// writers are processes without a memory tier. There are many of them, so that their invalidations
// rarely share a trip, as in a fleet. Those that read poll rarely.
type writers struct {
	loaders []*cacheaside.Loader[string, string]
	hashes  keys.Namespace
	next    int // number of the next key; keys are never used twice
}

const (
	writing    = 64  // caches
	inProgress = 256 // invalidations
)

// patient are options with which a busy machine causes no time-outs.
func patient(o cacheaside.Options) *cacheaside.Options {
	o.Prefix = prefix
	o.RedisTimeout, o.ReadTimeout, o.LeaseTTL = 10*time.Second, 10*time.Second, 30*time.Second
	o.Logger = slog.New(slog.DiscardHandler)
	return &o
}

// process is one process of the fleet.
type process struct {
	cache *cacheaside.Cache
	rows  *cacheaside.Loader[string, string]
}

// newProcess returns a process whose loads return the key after a while. The caller closes its
// cache.
func newProcess(t *testing.T, s *service, o *cacheaside.Options, loads *atomic.Int64) process {
	t.Helper()
	c, err := cacheaside.New(s.client, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := cacheaside.NewLoader(c, "row", func(_ context.Context, key string) (string, error) {
		loads.Add(1)
		time.Sleep(50 * time.Millisecond)
		return key, nil
	}, &cacheaside.LoaderOptions{LoadTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return process{c, l}
}

func newWriters(t *testing.T, s *service) *writers {
	w := &writers{hashes: keys.NewNamespace(prefix, "row", "1")}
	for range writing {
		o := patient(cacheaside.Options{MemoryBytes: -1, MaxStaleness: time.Minute})
		p := newProcess(t, s, o, new(atomic.Int64))
		t.Cleanup(func() { p.cache.Close() })
		w.loaders = append(w.loaders, p.rows)
	}
	return w
}

// invalidate makes perSecond invalidations a second for a while, or as many as Redis can do. It
// returns the time of each call in Unix microseconds by the hash of its key.
func (w *writers) invalidate(t *testing.T, perSecond int, d time.Duration) (called map[uint64]int64) {
	t.Helper()
	called = map[uint64]int64{}
	var failed atomic.Int64
	slots := make(chan struct{}, inProgress)
	var all sync.WaitGroup
	began := time.Now()
	for n := 0; time.Since(began) < d; {
		if due := int(time.Since(began).Seconds() * float64(perSecond)); n >= due {
			time.Sleep(200 * time.Microsecond)
			continue
		}
		slots <- struct{}{}
		loader, key := w.loaders[n%len(w.loaders)], "key-"+strconv.Itoa(w.next)
		called[w.hashes.Hash(key)] = time.Now().UnixMicro()
		n, w.next = n+1, w.next+1
		all.Go(func() {
			if err := loader.Invalidate(t.Context(), key); err != nil {
				failed.Add(1)
			}
			<-slots
		})
	}
	all.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d invalidations have failed", n)
	}
	return called
}

// deliveries measures announcements to n listeners at several rates.
func deliveries(t *testing.T, s *service, w *writers, n int, rates []int, d time.Duration) {
	l := listen(t, listenConfig{s.listen, invalidation.Topic(prefix, 0), n})
	defer l.Kill()
	l.take(t, 1)
	stop := s.gets(t)
	before := s.usage(t)
	time.Sleep(d)
	idle := s.usage(t).since(before)
	idleGets := stop()
	for _, perSecond := range rates {
		every := max(uint64(float64(perSecond)*d.Seconds()/1000), 1) // records some 1,000 keys
		l.take(t, every)
		stop = s.gets(t)
		before = s.usage(t)
		called := w.invalidate(t, perSecond, d)
		took := time.Since(before.at).Seconds()
		gets := stop()
		got := l.take(t, 1)
		after := s.usage(t)

		count := float64(len(called))
		var cpu []float64 // of each node
		for i := range s.nodes {
			background := idle.cpu[i] * after.at.Sub(before.at).Seconds()
			cpu = append(cpu, (after.cpu[i]-before.cpu[i]-background)/count)
		}
		messages := 0.0
		for _, m := range got.Messages {
			messages += float64(m) / float64(len(got.Messages)) / count
		}
		delay, sinceCall := delays(t, got, called)
		row(t, s.name, n, perSecond, count/took, messages, sum(cpu), slices.Max(cpu),
			quantile(delay, .5), quantile(delay, .99), quantile(sinceCall, .5), quantile(sinceCall, .99),
			quantile(idleGets, .99), quantile(gets, .99), float64(got.Bytes)/float64(n)/count, got.Cut)
		check(t, got, called, every, n)
	}
}

// delays returns the times in ms until a listener has received a key, from the number of its
// announcement and from the call of Invalidate. Both are sorted.
func delays(t *testing.T, got received, called map[uint64]int64) (announced, sinceCall []float64) {
	t.Helper()
	for _, r := range got.Receipts {
		at, ok := called[r.Hash]
		if !ok {
			t.Error("received a key that was not invalidated")
			continue
		}
		announced = append(announced, float64(r.At-r.Announced)/1000)
		sinceCall = append(sinceCall, float64(r.At-at)/1000)
	}
	slices.Sort(announced)
	slices.Sort(sinceCall)
	return announced, sinceCall
}

// check fails the test unless each listener that decodes has received each key once, or Redis has
// cut listeners that were too slow.
func check(t *testing.T, got received, called map[uint64]int64, every uint64, n int) {
	t.Helper()
	recorded := 0
	for hash := range called {
		if hash%every == 0 {
			recorded++
		}
	}
	if want := recorded * len(got.Messages); got.Cut == 0 && len(got.Receipts) != want {
		t.Errorf("%d listeners, of which %d decode, have received %d keys, want %d", n, len(got.Messages),
			len(got.Receipts), want)
	}
}

// open starts n processes that listen. They are closed when the test ends.
func open(t *testing.T, s *service, n int, o cacheaside.Options) (fleet []process, loads *atomic.Int64) {
	o.MemoryBytes = 1 << 20
	loads = new(atomic.Int64)
	for range n {
		fleet = append(fleet, newProcess(t, s, patient(o), loads))
	}
	t.Cleanup(func() {
		var all sync.WaitGroup
		for _, p := range fleet {
			all.Go(func() { p.cache.Close() })
		}
		all.Wait()
	})
	each(t, fleet, "first")
	for _, p := range fleet {
		testenv.Eventually(t, "a process listens", func() bool { return p.cache.Stats().Bus.Subscribed })
	}
	return fleet, loads
}

// each lets all processes read a key at once.
func each(t *testing.T, fleet []process, key string) {
	t.Helper()
	var all sync.WaitGroup
	for _, p := range fleet {
		all.Go(func() {
			if got, err := p.rows.Get(t.Context(), key); err != nil || got != key {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	all.Wait()
}

// idle measures n processes that do nothing, with the default of MaxStaleness.
func idle(t *testing.T, s *service, n int, d time.Duration) {
	t.Run("idle", func(t *testing.T) {
		open(t, s, n, cacheaside.Options{})
		before := s.usage(t)
		time.Sleep(d)
		r := s.usage(t).since(before)
		row(t, s.name, n, r.commands, sum(r.cpu)/1e4, sum(r.cpu)/float64(n))
	})
}

// cold measures n processes that want the same cold key at once. They poll rarely, so that nearly
// all commands are those of the key.
func cold(t *testing.T, s *service, n, colds int) {
	t.Run("cold", func(t *testing.T) {
		fleet, loads := open(t, s, n, cacheaside.Options{MaxStaleness: time.Minute})
		loads.Store(0)
		before := s.usage(t)
		for i := range colds {
			each(t, fleet, fmt.Sprintf("cold-%d-%d", n, i))
		}
		after := s.usage(t)
		commands, cpu := after.commands-before.commands, sum(after.cpu)-sum(before.cpu)
		row(t, s.name, n, commands/float64(colds), cpu/float64(colds))
		if got := loads.Load(); got != int64(colds) {
			t.Errorf("%d processes have loaded %d cold keys %d times", n, colds, got)
		}
	})
}

// reads measures reads that memory does not serve, of keys that are in Redis, and of keys that are
// loaded.
func reads(t *testing.T, s *service, w *writers, d time.Duration) {
	for _, kind := range []string{"a hit in Redis", "a miss"} {
		var count atomic.Int64
		var all sync.WaitGroup
		before := s.usage(t)
		for g, loader := range w.loaders {
			all.Go(func() {
				for i := 0; time.Since(before.at) < d; i++ {
					key := fmt.Sprintf("%s-%d", kind, g)
					if kind == "a miss" {
						key += "-" + strconv.Itoa(i)
					}
					if _, err := loader.Get(t.Context(), key); err != nil {
						t.Error(err)
					}
					count.Add(1)
				}
			})
		}
		all.Wait()
		after := s.usage(t)
		n := float64(count.Load())
		row(t, s.name, kind, n/after.at.Sub(before.at).Seconds(), (after.commands-before.commands)/n,
			(sum(after.cpu)-sum(before.cpu))/n)
	}
}

// full selects the sizes whose figures are reported. Otherwise the workload is just large enough to
// show that all announcements arrive and that each cold key is loaded once.
func full[T any](n, few T) T {
	if testenv.Accepting {
		return n
	}
	return few
}

// TestFleet measures what announcements to many processes, their polls, cold keys that all of them
// want, and their reads cost one Redis and a cluster.
func TestFleet(t *testing.T) {
	services := []*service{oneRedis(t)}
	if testenv.Accepting {
		services = append(services, cluster(t))
	}
	d := full(3*time.Second, 50*time.Millisecond)
	t.Log("CPU of Redis in us; delays and GETs in ms: on a busy machine these are not only those of Redis")
	row(t, "server", "listeners", "invalidations/s wanted", "made", "messages for each",
		"CPU of all nodes for each", "of the busiest node", "delay from the announcement p50", "p99",
		"from the call p50", "p99", "GET next to an idle Redis p99", "next to invalidations p99",
		"bytes to a listener for each", "listeners cut")
	for _, s := range services {
		w := newWriters(t, s)
		for _, n := range full([]int{1, 10, 100, 1000}, []int{10}) {
			rates := full([]int{100, 1000, 10_000}, []int{100})
			if n == 1000 {
				rates = rates[:2] // a million deliveries a second are more than one Redis can do
			}
			deliveries(t, s, w, n, rates, d)
		}
	}
	row(t, "server", "processes", "commands/s when idle", "CPU when idle, %", "for each process, us/s")
	for _, s := range services {
		for _, n := range full([]int{1, 10, 100, 1000}, []int{10}) {
			if n < 1000 || len(s.nodes) == 1 { // on the cluster it would be 32,000 polls a second
				idle(t, s, n, full(4*time.Second, 50*time.Millisecond))
			}
		}
	}
	row(t, "server", "processes", "commands for a cold key", "CPU for it")
	for _, s := range services {
		for _, n := range full([]int{1, 10, 100, 1000}, []int{10}) {
			if n < 1000 || len(s.nodes) == 1 {
				cold(t, s, n, full(10, 2))
			}
		}
	}
	row(t, "server", "read", "a second", "commands for each", "CPU for each")
	for _, s := range services {
		reads(t, s, newWriters(t, s), d)
	}
}
