package consistency

import (
	"bufio"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var relaysItems = flag.Int("relays.items", 0, "of TestRelays; 0: 1,500, and 40,000 with CACHEASIDE_ACCEPT")

func init() { testenv.RegisterChild("relays", relaysChild) }

// TestRelays: relays of several processes share the work of one outbox. No key is in the works of
// two at once, also when one of them is killed with what it has; and more of them do not do less.
func TestRelays(t *testing.T) { testenv.OneServerUnlessAccepting(t, testRelays) }

func testRelays(t *testing.T, e testenv.Engine) {
	r := testenv.StartRedis(t)
	m := testenv.Durable(t, e)
	n, rounds, alone, killed := cmp.Or(*relaysItems, 1500), 1, []int{2}, []int{3}
	if testenv.Accepting {
		n, rounds, alone, killed = cmp.Or(*relaysItems, 40_000), 5, []int{1, 2, 4}, []int{2, 4}
	}
	rates := map[int][]float64{}
	for range rounds { // side by side, as the machine may be busy with something else now and then
		for _, relays := range alone {
			rates[relays] = append(rates[relays], newRelays(t, r, m, n, relays, false).run())
		}
	}
	var medians []string
	for _, relays := range slices.Sorted(maps.Keys(rates)) {
		slices.Sort(rates[relays])
		medians = append(medians, fmt.Sprintf("%d relays %.0f/s (%.0f to %.0f)", relays, rates[relays][rounds/2],
			rates[relays][0], rates[relays][rounds-1]))
	}
	t.Logf("%d items, the median of %d runs: %s", n, rounds, strings.Join(medians, ", "))
	if one := rates[1]; testenv.Accepting &&
		(rates[2][rounds/2] < 0.8*one[rounds/2] || rates[4][rounds/2] < 0.8*one[rounds/2]) {
		t.Error("more relays do less")
	}
	for _, relays := range killed {
		newRelays(t, r, m, n, relays, true).run()
	}
}

// relays is one run of it.
type relays struct {
	t        *testing.T
	queue    TestOutbox
	db       *sqlx.DB
	items    int
	children []*killedProcess
	worked   map[string][]spell // of each key
}

// spell is from when a relay began to delete a key to when it was done.
type spell struct {
	relay      int
	begin, end int64 // ns; 0: it was killed
}

func newRelays(t *testing.T, r *testenv.Redis, m *testenv.Database, items, n int, kill bool) *relays {
	x := &relays{t: t, db: m.Open(t), items: items, worked: map[string][]spell{}}
	var err error
	x.queue, err = NewTestOutbox(x.db, "", testSpace)
	x.check(err)
	x.check(x.queue.CreateTable(t.Context()))
	all := make([]Item, items)
	for i := range all {
		all[i] = Item{Key: cacheaside.Key{Loader: "item", Text: strconv.Itoa(i)}}
	}
	x.check(x.queue.Put(t.Context(), all...))
	for i := range n {
		w := killWorld{Redis: r.Addr, DSN: m.DSN(t), Who: i}
		if kill && i == 0 {
			w.Nth = 1 + items/500/n/4
		}
		c := spawnKilled(t, "relays", w, nil)
		t.Cleanup(c.end)
		x.children = append(x.children, c)
	}
	return x
}

// run returns how many items were done in a second.
func (r *relays) run() float64 {
	for _, c := range r.children {
		testenv.Eventually(r.t, "a relay is ready", func() bool { return c.ready.Load() > 0 })
	}
	began := time.Now()
	var dying []string // what those have said that are killed
	for _, c := range r.children {
		fmt.Fprintln(c.Stdin, "go")
		if c.Nth > 0 { // it is to have something when it is killed
			dying = append(dying, testenv.Receive(r.t, "the first relay", c.lines))
		}
	}
	for _, c := range r.children {
		for c.Nth > 0 {
			line := testenv.Receive(r.t, "the end of the relay that is killed", c.lines)
			if line == "" {
				break
			}
			dying = append(dying, line)
		}
	}
	for _, line := range dying { // the time of what it had claimed has come
		if claim, ok := strings.CutPrefix(line, "claim "); ok {
			_, err := r.db.Exec(r.db.Rebind("UPDATE cacheaside_outbox SET due = was_due WHERE claim = ?"), claim)
			r.check(err)
		}
	}
	for began := time.Now(); r.left() > 0; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > 2*testenv.Hang {
			r.t.Fatalf("%d items are still to be done", r.left())
		}
	}
	var last int64
	shares, killed, at := make([]int, len(r.children)), 0, int64(0)
	for i, c := range r.children {
		c.Stdin.Close()
		if c.Nth > 0 {
			for _, line := range dying {
				last = max(last, r.note(i, line))
			}
		}
		for line := range c.lines {
			last = max(last, r.note(i, line))
		}
		if err := c.Wait(); err != nil {
			killed++
			at = r.buried(i)
		}
		c.end()
	}
	again := r.judge(shares)
	rate := float64(r.items) / time.Unix(0, last).Sub(began).Seconds()
	if killed > 0 {
		r.t.Logf("%d relays, of which one is killed %v after the begin: shares of the work %v, %d done twice",
			len(shares), time.Unix(0, at).Sub(began).Round(time.Millisecond), shares, again)
	} else if again > 0 {
		r.t.Errorf("%d relays: %d keys were done twice", len(shares), again)
	}
	for _, c := range r.children {
		if c.Nth > 0 && (killed != 1 || again == 0) {
			r.t.Errorf("%d relays killed, %d keys done twice: this has shown nothing", killed, again)
		}
	}
	return rate
}

func (r *relays) left() int {
	d, err := r.queue.Depth(r.t.Context())
	r.check(err)
	return d.Items
}

// note understands a line of a child: when it began, and when it ended, what; or what it calls a
// claim.
func (r *relays) note(relay int, line string) (at int64) {
	what, rest, _ := strings.Cut(line, " ")
	if what == "claim" {
		return 0
	}
	when, keys, _ := strings.Cut(rest, " ")
	at, err := strconv.ParseInt(when, 10, 64)
	if err != nil {
		r.t.Fatalf("relay %d says %q", relay, line)
	}
	for key := range strings.SplitSeq(keys, ",") {
		spells := r.worked[key]
		if what == "begin" {
			r.worked[key] = append(spells, spell{relay: relay, begin: at})
			continue
		}
		for i := range spells {
			if spells[i].relay == relay && spells[i].end == 0 {
				spells[i].end = at
			}
		}
	}
	return at
}

// buried ends what a relay was about when it was killed.
func (r *relays) buried(relay int) (at int64) {
	for _, spells := range r.worked {
		for _, s := range spells {
			if s.relay == relay {
				at = max(at, s.begin, s.end)
			}
		}
	}
	for _, spells := range r.worked {
		for i := range spells {
			if spells[i].relay == relay && spells[i].end == 0 {
				spells[i].end = at
			}
		}
	}
	return at
}

// judge fails if a key was assigned to two relays at once, or to none. It returns how many keys
// were done twice.
func (r *relays) judge(shares []int) (again int) {
	if len(r.worked) != r.items {
		r.t.Errorf("%d keys of %d were done", len(r.worked), r.items)
	}
	for key, spells := range r.worked {
		slices.SortFunc(spells, func(a, b spell) int { return cmp.Compare(a.begin, b.begin) })
		for i, s := range spells {
			shares[s.relay]++
			if i > 0 && s.begin < spells[i-1].end {
				r.t.Errorf("relay %d began with key %s %v before relay %d was done with it", s.relay, key,
					time.Duration(spells[i-1].end-s.begin), spells[i-1].relay)
			}
		}
		if len(spells) > 1 {
			again++
		}
	}
	return again
}

func (r *relays) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// relaysChild is a relay that prints what it does.
func relaysChild() {
	w := killedWorld()
	defer w.close()
	w.rdb.AddHook(&tellingHook{w: bufio.NewWriterSize(os.Stdout, 1<<16), die: w.Nth})
	cache, err := cacheaside.New(w.rdb, &cacheaside.Options{MemoryBytes: -1, RedisTimeout: testenv.Hang})
	if err != nil {
		panic(err)
	}
	defer cache.Close()
	box, err := NewTestOutbox(w.db, "", "")
	if err != nil {
		panic(err)
	}
	r, err := NewRelay(cache, tellingOutbox{box}, &RelayOptions{Poll: 20 * time.Millisecond, ClaimFor: time.Hour,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	if err := r.Run(ctx); err != nil {
		panic(err)
	}
}

// tellingOutbox prints the names of its claims.
type tellingOutbox struct{ TestOutbox }

func (t tellingOutbox) Claim(ctx context.Context, most int, life time.Duration) ([]Item, error) {
	items, err := t.TestOutbox.Claim(ctx, most, life)
	if len(items) > 0 {
		fmt.Println("claim", items[0].Claim)
	}
	return items, err
}

// tellingHook prints the begin and the end of each pipeline of deletes. It kills the process after
// the die-th, unless that is 0.
type tellingHook struct {
	w   *bufio.Writer
	die int
}

func (*tellingHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*tellingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (t *tellingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		var keys []string
		for _, c := range commands {
			if _, key, ok := strings.Cut(fmt.Sprint(c.Args()...), ":{"); ok && c.Name() == "del" {
				key, _, _ = strings.Cut(key, "}")
				keys = append(keys, key)
			}
		}
		if len(keys) == 0 {
			return next(ctx, commands)
		}
		t.tell("begin", keys)
		err := next(ctx, commands)
		if t.die--; t.die == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		t.tell("end", keys)
		return err
	}
}

func (t *tellingHook) tell(what string, keys []string) {
	fmt.Fprintln(t.w, what, time.Now().UnixNano(), strings.Join(keys, ","))
	_ = t.w.Flush()
}
