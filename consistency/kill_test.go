package consistency

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var (
	killSeed  = flag.Uint64("kill.seed", 1, "of TestNothingIsForgotten")
	killKills = flag.Int("kill.kills", 0,
		"at each level, of TestNothingIsForgotten; 0: 8, and 500 with CACHEASIDE_ACCEPT")
)

// TestNothingIsForgotten: processes that write are killed anywhere, and relays, and Redis, while
// others read all the time. When all has come to rest, no cache differs from the database, except
// for rows written at the level Inline.
func TestNothingIsForgotten(t *testing.T) {
	kills := 8
	if testenv.Accepting {
		kills = 500
	}
	testenv.OneServerUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		p := newKillPlay(t, e, cmp.Or(*killKills, kills))
		p.run()
		p.rest()
		p.report(p.verdict())
	})
}

// killPlay is one run of it.
type killPlay struct {
	*killProcess
	t      *testing.T
	server *testenv.Redis
	random *rand.Rand
	plan   []killWorld // the writers that are still to come
	blocks int
	began  time.Time
	took   time.Duration

	spawned int
	living  []*killedProcess // writers
	readers []*killedProcess
	relays  []*killedProcess
	ended   chan *killedProcess // of writers and relays

	decks      map[int][]string       // of each case, and of relays: the places to die that come next
	died       map[int]map[string]int // how often one has died where; "": anywhere
	history    map[int][]string       // of each block: how its writers have died
	redisKills int
	cached     int // keys that were found in Redis in the end
}

const (
	killTime = 4 * time.Second // unless CACHEASIDE_ACCEPT is set: a machine that is busy kills less
	relaying = -1              // stands for the relays, as a further case
)

// passes reports whether processes of a case, or relays, pass a point.
func passes(group int, at string) bool {
	if relays := slices.Contains([]string{"relaying", "relayed", "gone"}, at); relays || group == relaying {
		return relays && group == relaying
	}
	c := killCases[group]
	switch at {
	case "stored", "filters-committed", "released":
		return c.level == Strict
	case "invalidated":
		return c.level == Inline || c.level == Outbox
	case "queued":
		return c.memory // and only while Redis is out
	case "removing", "removed":
		return c.level == Outbox || c.level == Strict
	}
	return true
}

func newKillPlay(t *testing.T, e testenv.Engine, kills int) *killPlay {
	server := testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	m := testenv.DatabaseOf(t, e)
	if e != testenv.PostgreSQL { // whose shared server loses nothing with its process
		m = testenv.Durable(t, e)
	}
	own, err := killWorld{Redis: server.Addr, DSN: m.DSN(t), Seed: *killSeed, Patient: true}.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.close)
	p := &killPlay{
		killProcess: own, t: t, server: server, random: rand.New(rand.NewPCG(*killSeed, 0)),
		ended: make(chan *killedProcess, 100),
		decks: map[int][]string{}, died: map[int]map[string]int{}, history: map[int][]string{},
	}
	p.planFor(kills)
	if err := p.createTables(t.Context(), p.blocks); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range slices.Concat(p.living, p.readers, p.relays) {
			c.end()
		}
	})
	for _, w := range []killWorld{{}, {Memory: true}, {Slow: 30 * time.Millisecond}} {
		p.readers = append(p.readers, p.spawn("kill-reader", w))
	}
	for range 2 {
		p.relays = append(p.relays, p.relay())
	}
	p.began = time.Now()
	return p
}

// planFor makes the plan: of four writers of a case two are alone in their blocks, so that no other
// writer repairs what they leave, and two share one.
func (k *killPlay) planFor(kills int) {
	for i := 0; i < kills; i += 4 {
		for own := range 3 {
			for n := range killCases {
				w := killWorld{Case: n, Block: k.blocks}
				nth := k.blocks / len(killCases)
				w.Double, w.Reload = nth%2 == 1, nth/2%2 == 1
				k.blocks++
				k.plan = append(k.plan, w)
				if own == 2 {
					k.plan = append(k.plan, w)
				}
			}
		}
	}
}

// run kills.
func (k *killPlay) run() {
	redis, relay := k.soon(), k.soon()
	for len(k.plan)+len(k.living) > 0 {
		if !testenv.Accepting && time.Since(k.began) > killTime {
			k.plan = nil
		}
		for len(k.living) < 6 && len(k.plan) > 0 {
			k.living = append(k.living, k.writer(k.plan[0]))
			k.plan = k.plan[1:]
		}
		select {
		case c := <-k.ended:
			k.bury(c)
		case <-time.After(2 * time.Millisecond):
		}
		for _, c := range slices.Concat(k.living, k.relays) {
			if c.due() {
				c.killed = true
				c.Kill()
			}
		}
		if time.Now().After(relay) {
			k.relays[k.random.IntN(len(k.relays))].after = 1 // at once
			relay = k.soon()
		}
		if time.Now().After(redis) {
			k.server.Kill()
			time.Sleep(time.Duration(k.random.Int64N(int64(200 * time.Millisecond))))
			k.server.Restart(k.t)
			k.redisKills++
			redis = k.soon()
		}
	}
}

// soon is in a second or so.
func (k *killPlay) soon() time.Time {
	return time.Now().Add(500*time.Millisecond + time.Duration(k.random.Int64N(int64(time.Second))))
}

// writer is the next of the plan. One in four is killed at any instant, the others kill themselves.
func (k *killPlay) writer(w killWorld) *killedProcess {
	var after time.Duration
	if k.shared(w.Block) && len(k.history[w.Block]) == 0 &&
		!slices.ContainsFunc(k.living, func(c *killedProcess) bool { return c.Block == w.Block }) {
		after = 1 + time.Duration(k.random.Int64N(int64(100*time.Millisecond)))
	} else {
		w.Point, w.Nth = k.draw(w.Case), 1+k.random.IntN(4)
		after = 3 * time.Second
	}
	c := k.spawn("kill-writer", w)
	c.after = after
	for _, r := range k.readers { // the blocks of the living, and of those before
		fmt.Fprintf(r.Stdin, "read %d %d\n", max(0, w.Block-10), w.Block+1)
	}
	return c
}

func (k *killPlay) shared(block int) bool { return block/len(killCases)%3 == 2 }

func (k *killPlay) relay() *killedProcess {
	return k.spawn("kill-relay", killWorld{Point: k.draw(relaying), Nth: 1 + k.random.IntN(2)})
}

// draw returns where the next process dies: at the riskiest points first, and then everywhere in
// turn.
func (k *killPlay) draw(group int) string {
	if len(k.decks[group]) == 0 {
		deck := slices.DeleteFunc(slices.Clone(points), func(at string) bool { return !passes(group, at) })
		if group == relaying {
			// with what it has claimed, and when that is not in the queue any more
			deck = append(deck, "relaying", "gone", "gone")
		}
		k.random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		if worst := slices.Index(deck, "committed"); worst > 0 && len(k.died[group]) == 0 {
			deck[0], deck[worst] = deck[worst], deck[0]
		}
		k.decks[group] = deck
	}
	at := k.decks[group][0]
	k.decks[group] = k.decks[group][1:]
	return at
}

// bury notes how a process has ended.
func (k *killPlay) bury(c *killedProcess) {
	if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		k.t.Errorf("process %d ended by itself: %v", c.Who, err)
	}
	group, at := c.Case, ""
	if c.role == "kill-relay" {
		group = relaying
	}
	if k.died[group] == nil {
		k.died[group] = map[string]int{}
	}
	if !c.killed {
		at = c.Point
	}
	k.died[group][at]++
	c.end()
	if i := slices.Index(k.relays, c); i >= 0 {
		k.relays[i] = k.relay()
		return
	}
	k.history[c.Block] = append(k.history[c.Block], cmp.Or(at, "any instant"))
	k.living = slices.DeleteFunc(k.living, func(o *killedProcess) bool { return o == c })
}

// rest returns when all that is to be done is done, by fresh relays. Before they come, the readers
// have read all once more.
func (k *killPlay) rest() {
	ended := time.Now()
	k.took = ended.Sub(k.began)
	for _, c := range k.relays {
		c.end()
	}
	for _, r := range k.readers {
		fmt.Fprintf(r.Stdin, "all %d\n", k.blocks)
	}
	for _, r := range k.readers {
		if line := testenv.Receive(k.t, "a reader has read all", r.lines); line != "has read all" {
			k.t.Errorf("a reader says %q", line)
		}
	}
	for i := range k.relays {
		k.relays[i] = k.spawn("kill-relay", killWorld{Patient: true})
	}
	more := 300 * time.Millisecond
	if testenv.Accepting {
		more = 5 * time.Second
	}
	for began := time.Now(); k.depth() > 0 || time.Since(ended) < killLease; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > 2*testenv.Hang {
			k.t.Fatalf("%d items are still to be done", k.depth())
		}
	}
	time.Sleep(more) // if anything were still to come, it would
	if n := k.depth(); n > 0 {
		k.t.Errorf("%d items have come from nowhere", n)
	}
}

// depth is how much there is to do.
func (k *killPlay) depth() (n int) {
	for _, s := range k.sides {
		d, err := s.box.Depth(k.t.Context())
		if err != nil {
			k.t.Fatal(err)
		}
		n += d.Items
	}
	return n
}

// verdict returns the stale keys by reader.
func (k *killPlay) verdict() (wrong map[string][]staleKey) {
	wrong = make(map[string][]staleKey)
	for i, c := range k.readers {
		who := eyes[i]
		fmt.Fprintln(c.Stdin, "rest")
		for line := range c.lines {
			var s staleKey
			if n, _ := fmt.Sscanf(line, "stale %t %d %d %d", &s.sum, &s.key, &s.got, &s.want); n == 4 {
				wrong[who] = append(wrong[who], s)
			} else if line != "checked <nil>" {
				k.t.Errorf("%s: %s", who, line)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Hang)
	defer cancel()
	all, err := k.check(ctx, k.blocks)
	if err != nil {
		k.t.Fatal(err)
	}
	wrong["Redis"] = all
	k.cached = k.blocks*(killRows+1) - int(k.loads.Load())
	return wrong
}

// eyes are those of the readers, and last those of a process that has read nothing before.
var eyes = []string{"a reader", "a reader with memory", "a slow reader", "Redis"}

func (k *killPlay) report(wrong map[string][]staleKey) {
	t, left := k.t, make(map[string]int)
	for _, who := range eyes {
		for _, s := range wrong[who] {
			c := killCases[s.block()%len(killCases)]
			left[c.name+who]++
			if !c.memory {
				t.Errorf("%s: %s has not forgotten: %v; its writers have died at: %s", c.name, who, s,
					strings.Join(k.history[s.block()], ", "))
			}
		}
	}
	keys := k.blocks * (killRows + 1)
	t.Logf("seed %d, %v of kills, %d of Redis among them; in the end %d of %d keys were cached", k.Seed,
		k.took.Round(time.Millisecond), k.redisKills, k.cached, keys)
	for i, c := range killCases {
		var writes int
		if err := k.db.Get(&writes, k.db.Rebind("SELECT SUM(n) FROM kill_row WHERE MOD(block, ?) = ?"), len(killCases),
			i); err != nil {
			t.Fatal(err)
		}
		var seen string
		for _, who := range eyes {
			seen += fmt.Sprintf(", %s %d", who, left[c.name+who])
		}
		t.Logf("%-12s keys stale for ever: %d (as seen by%s); writes committed: %d; killed %s", c.name,
			left[c.name+"Redis"], seen[1:], writes, k.deaths(i))
	}
	t.Logf("relays killed %s", k.deaths(relaying))
	if k.cached*2 < keys {
		t.Error("too little was cached in the end: this has shown nothing")
	}
	if !testenv.Accepting {
		return
	}
	if left["Inline"+"Redis"] == 0 {
		t.Error("Inline has left nothing: this has shown nothing")
	}
	for _, at := range points {
		if n := 0; !slices.ContainsFunc(append(caseNumbers(), relaying),
			func(group int) bool { n += k.died[group][at]; return n > 0 }) {
			t.Errorf("no process was killed at %q", at)
		}
	}
}

func caseNumbers() (all []int) {
	for i := range killCases {
		all = append(all, i)
	}
	return all
}

// deaths describes where the processes of the case were killed.
func (k *killPlay) deaths(group int) string {
	died := k.died[group]
	var at []string
	total := died[""]
	for _, name := range points {
		if died[name] > 0 {
			at = append(at, fmt.Sprintf("%s %d", name, died[name]))
			total += died[name]
		}
	}
	return fmt.Sprintf("%d: at any instant %d, %s", total, died[""], strings.Join(at, ", "))
}
