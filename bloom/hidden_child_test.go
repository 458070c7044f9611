package bloom

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() {
	testenv.RegisterChild("hidden-writer", func() { hiddenChild((*hidden).write) })
	testenv.RegisterChild("hidden-reader", func() { hiddenChild((*hidden).read) })
	testenv.RegisterChild("hidden-rebuilder", func() { hiddenChild((*hidden).rebuild) })
}

// hidden is one process of TestNothingIsHidden.
type hidden struct {
	*world
	rdb redis.UniversalClient
	mu  sync.Mutex // of standard output
}

// hiddenChild runs until the parent says so, or a key is hidden: then it says who has hidden it.
func hiddenChild(run func(*hidden)) {
	h := &hidden{world: childWorld()}
	h.rdb = h.config.client()
	defer h.rdb.Close()
	run(h)
	fmt.Println("ended")
}

func (h *hidden) random(salt uint64) *rand.Rand {
	return rand.New(rand.NewPCG(h.config.Seed, uint64(h.config.Who)<<32|salt))
}

// filter is one more of this process. Its capacity and rate matter if it rebuilds.
func (h *hidden) filter(capacity uint64, rate float64) *Redis {
	f, err := NewRedis(h.rdb, "users", capacity, rate, &Options{MaxStaleness: h.config.Staleness})
	if err != nil {
		panic(err)
	}
	return f
}

// pick chooses promised keys among those promised before a time, mostly recent ones, which are in
// most danger. All are promised before the caller continues.
func (h *hidden) pick(r *rand.Rand, n int, before int64) []int {
	end := min(int(h.get(next)), len(h.rows))
	if end == 0 {
		return nil
	}
	picked := make([]int, 0, n)
	for range n {
		i := r.IntN(end)
		if r.IntN(2) == 0 {
			i = end - 1 - r.IntN(min(end, 3000))
		}
		if at := atomic.LoadInt64(&h.rows[i].promised); at != 0 && at < before {
			picked = append(picked, i)
		}
	}
	return picked
}

// strangers returns keys that are never added.
func strangers(r *rand.Rand, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("nobody%d", r.Uint64())
	}
	return keys
}

func (h *hidden) keys(rows []int) []string {
	keys := make([]string, len(rows))
	for i, row := range rows {
		keys[i] = h.key(row)
	}
	return keys
}

type asker func(ctx context.Context, keys []string) ([]bool, error)

// check looks rows up which must be found, and counts them as what; strangers among them, as no and
// none.
func (h *hidden) check(r *rand.Rand, who string, f *Redis, ask asker, rows []int, what ...int) {
	const others = 20
	keys := append(h.keys(rows), strangers(r, others)...)
	d := f.cached.Load()
	began := clock()
	maybe, err := ask(context.Background(), keys)
	if err != nil {
		h.count(failedLookups, 1)
	}
	for i, row := range rows {
		if !maybe[i] {
			h.accuse(who, f, d, row, began, err)
		}
	}
	no := 0
	for _, m := range maybe[len(rows):] {
		if !m {
			no++
		}
	}
	h.count(asked, others)
	h.count(absent, no)
	h.count(allChecks, len(rows))
	if no == 0 { // it says "maybe" to all, which is quickly done
		time.Sleep(2 * time.Millisecond)
		return
	}
	h.count(checks, len(rows))
	for _, w := range what {
		h.count(w, len(rows))
	}
}

// accuse reports a key that was hidden.
func (h *hidden) accuse(who string, f *Redis, d *cachedDescriptor, i int, began int64, err error) {
	now := clock()
	if h.get(stop) > 3 { // it has been reported already
		return
	}
	row := &h.rows[i]
	told := atomic.LoadUint32(&row.told)
	raw, redisErr := h.rdb.Get(context.Background(), f.key).Result()
	before, after := "none", "none"
	if k := f.cached.Load(); k != nil {
		after = brief(k.raw)
	}
	if d != nil {
		before = brief(d.raw)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Printf("HIDDEN at %.4f: from %s of child %d: key %d, promised to child %d by %s %v before the lookup began, "+
		"which took %v, error %v. known before: %s; after: %s; in Redis: %s, %v\n",
		float64(now)/1e9, who, h.config.Who, i, told>>8, routes[told&0xff], time.Duration(
			began-atomic.LoadInt64(&row.promised)), time.Duration(now-began), err, before, after, brief(raw), redisErr)
	h.count(stop, 1)
}
