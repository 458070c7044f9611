package promises

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
)

// Whole loaders.

// InvalidateAll invalidates everything that is cached of a loader, in all processes and versions,
// including loads in progress. It does not affect other loaders.
func TestInvalidateAll(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		rows := make(map[int]string)
		for i := range 40 { // in all ranges of a cluster
			rows[i] = "old"
		}
		d := newTable(rows)
		p, q := start(t, b, d, patient, nil), start(t, b, d, patient, nil)
		bare := start(t, b, d, noMemory, nil)
		version := start(t, b, d, patient, &cacheaside.LoaderOptions{Version: "2"})
		all := []process{p, q, bare, version}
		for i := range 40 {
			for _, x := range all {
				x.want(t, i, "old", nil)
			}
		}
		other, err := cacheaside.NewLoader(p.cache, "other", d.load, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Get(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		d.write(99, "old")
		reached, resume := d.pause(d.loads.Load() + 1)
		running := later(func() (string, error) { return q.Get(t.Context(), 99) })
		reach(t, reached, "the load")
		for i := range 40 {
			d.write(i, "new")
		}
		d.write(99, "new")
		loads := d.loads.Load()
		if err := p.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		resume()
		if _, err := running(t); err != nil { // it began before, so both values are correct
			t.Fatal(err)
		}
		for i := range 40 {
			p.want(t, i, "new", nil)
			// It finds entries of an unknown generation, and asks for the current one.
			if bare.want(t, i, "new", nil); i == 0 {
				t.Logf("%+v", bare.Stats())
			}
			q.sees(t, i, "new")
			version.sees(t, i, "new")
		}
		p.want(t, 99, "new", nil)
		if n := d.loads.Load() - loads; n != 81 { // of each version its own
			t.Errorf("%d loads", n)
		}
		if _, err := other.Get(t.Context(), 1); err != nil || other.Stats().Loads != 1 {
			t.Errorf("another loader: %+v, %v", other.Stats(), err)
		}
		if err := p.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "new", nil)
		if n := d.loads.Load() - loads; n != 82 {
			t.Errorf("%d loads", n)
		}
	})
}

// InvalidateAll is one command for any number of entries.
func TestInvalidateAllCosts(t *testing.T) {
	b := realBackend(t)
	flushAll(t, b)
	d := newShelf(500)
	rdb, polls := countsPolls(t, b)
	p := startMany(t, rdb, d, rarePolls, nil)
	p.wantMany(t, upTo(500), rowsOf(d, 500))
	p.InvalidateAll(t.Context()) // loads the script
	polls.known(t)
	before := polls.callsBut(t, b)
	if err := p.InvalidateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := polls.callsBut(t, b)
	if n := got["evalsha"] - before["evalsha"]; n != 1 || got["publish"]-before["publish"] != 1 ||
		got["del"] != before["del"] {
		t.Errorf("%v, before %v", got, before)
	}
}

// A process without a memory tier does not subscribe, and learns of an InvalidateAll within the
// bound.
func TestInvalidateAllIsLearnedByPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "old"})
		p, bare := start(t, b, d, patient, nil), start(t, b, d, noMemory, nil)
		defer p.cache.Close()
		defer bare.cache.Close()
		bare.want(t, 1, "old", nil)
		d.write(1, "new")
		if err := p.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		bare.want(t, 1, "new", nil)
		if s := bare.Stats(); s.Outdated != 1 || s.Undecodable != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A process that is unsure of its generation asks for it before a read.
func TestUncertainGenerationIsVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		d := newTable(map[int]string{1: "old"})
		p, bare := start(t, b, d, patient, nil), start(t, b, d, noMemory, nil)
		defer p.cache.Close()
		defer bare.cache.Close()
		bare.want(t, 1, "old", nil)
		m.SetError("out of order")
		time.Sleep(3 * time.Second) // polls fail
		m.SetError("")
		d.write(1, "new")
		if err := p.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		bare.want(t, 1, "new", nil)
	})
}

// If Redis loses the generations, entries of earlier ones are not revived.
func TestLostGenerationsReviveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		d := newTable(map[int]string{1: "old"})
		p := start(t, b, d, noMemory, nil)
		defer p.cache.Close()
		p.want(t, 1, "old", nil)
		d.write(1, "new")
		if err := p.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A poll now would get exactly the first number, as no time has passed in the bubble.
		time.Sleep(10 * time.Millisecond)
		m.Del("cacheaside::announced:{" + conn.Tag(0) + "}")
		time.Sleep(2 * time.Second)
		p.want(t, 1, "new", nil)
		another := start(t, b, d, patient, nil)
		defer another.cache.Close()
		another.want(t, 1, "new", nil)
	})
}

// Without Redis, only this process's memory counts.
func TestInvalidateAllWithoutRedis(t *testing.T) {
	d := newTable(map[int]string{1: "old"})
	p := startOn(t, nil, d, patient, nil)
	p.remembers(t, 1, "old")
	d.write(1, "new")
	p.want(t, 1, "old", nil)
	if err := p.InvalidateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "new", nil)
	p.cache.Close()
	if err := p.InvalidateAll(t.Context()); err == nil ||
		fmt.Sprint(err) != "cacheaside: invalidate all of row: the cache is closed" {
		t.Error(err)
	}
}

// A poll in flight may be older than the bound: an unsure process does not use its reply.
func TestConfirmIgnoresOlderPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "old"})
		o := cacheaside.Options{MaxStaleness: 50 * time.Millisecond, MemoryBytes: -1}
		p := start(t, b, d, o, nil)
		defer p.cache.Close()
		options := *b.admin.(*redis.Client).Options()
		rdb := redis.NewClient(&options)
		defer rdb.Close()
		var slow atomic.Bool
		executed := make(chan struct{}, 100)
		rdb.AddHook(hooked{before: func(redis.Cmder) {}, after: func(cmd redis.Cmder) {
			if cmd.Name() == "evalsha" && strings.Contains(fmt.Sprint(cmd.Args()[3]), "announced") && slow.Load() {
				executed <- struct{}{}
				time.Sleep(400 * time.Millisecond)
			}
		}})
		q := startOn(t, rdb, d, o, nil)
		defer q.cache.Close()
		q.want(t, 1, "old", nil)
		slow.Store(true)
		<-executed
		d.write(1, "new")
		if err := p.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond) // six times the bound
		q.want(t, 1, "new", nil)
	})
}
