package consistency

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// staleness is for how long a race has others read what is stale, once the write was committed (or
// may have been).
type staleness string

const (
	never   staleness = "never"
	moment  staleness = "a moment" // until the invalidation, or a Relay
	forever staleness = "until its TTL"
)

// column is a way to write.
type column struct {
	name    string
	level   Level
	through bool
	double  time.Duration
}

var columns = []column{
	{name: "Async", level: Async},
	{name: "Inline", level: Inline},
	{name: "Outbox", level: Outbox},
	{name: "Outbox, DoubleDelete", level: Outbox, double: 10 * time.Millisecond},
	{name: "Strict", level: Strict},
	{name: "WriteThrough", level: Strict, through: true},
}

// run is one race.
type run struct {
	*world
	column
	impatient *world // is the same, but waits less for Redis
	new       string
}

// write writes row 1.
func (r *run) write() error {
	if r.through {
		return WriteThrough(r.t.Context(), r.Writer, r.rows, 1, through(1, r.new))
	}
	return r.At(r.level).Update(r.t.Context(), set(1, r.new), r.rows.Key(1))
}

// stale reports whether the other process reads a value that the database no longer has.
func (r *run) stale() bool {
	r.t.Helper()
	want, err := r.load(r.t.Context(), 1)
	r.check(err)
	got, err := r.other.Get(r.t.Context(), 1)
	r.check(err)
	return got != want
}

// end has relays do the remaining items, and returns the staleness of the race. before says whether
// a process has read a stale value already.
func (r *run) end(before bool) staleness {
	r.t.Helper()
	before = r.stale() || before
	r.relays("the queue is empty",
		func() bool { d, err := r.options.Queue.Depth(r.t.Context()); return d.Items == 0 && err == nil })
	switch {
	case r.stale():
		return forever
	case before:
		return moment
	default:
		return never
	}
}

// races are the events that can fall between the steps of a write.
var races = []struct {
	name string
	run  func(*run) staleness
}{
	{"a reader has read the row before the commit, and stores it after everything else", func(r *run) staleness {
		r.check(r.other.Invalidate(r.t.Context(), 1)) // so that it loads
		begun, resume := make(chan struct{}), make(chan struct{})
		slow, err := cacheaside.NewLoader(r.newCache(r.server.Client(r.t), cacheaside.Options{MemoryBytes: -1}), "item",
			func(ctx context.Context, id int) (string, error) {
				v, err := r.load(ctx, id)
				select {
				case <-begun:
				default:
					close(begun)
					<-resume
				}
				return v, err
			}, nil)
		r.check(err)
		read := make(chan error)
		go func() {
			_, err := slow.Get(r.t.Context(), 1)
			read <- err
		}()
		<-begun
		r.check(r.write())
		if r.level == Async {
			r.invalidated()
		}
		close(resume)
		r.check(<-read)
		return r.end(false)
	}},
	{"a reader comes between the commit and the invalidation", func(r *run) staleness {
		var before bool
		at(r.t, "committed", func() { before = r.stale() })
		r.check(r.write())
		return r.end(before)
	}},
	{"a reader loads from a replica that lags, after the invalidation", func(r *run) staleness {
		lags := r.lagging(r.newCache(r.server.Client(r.t), cacheaside.Options{MemoryBytes: -1}))
		r.check(r.write())
		r.eventually("the writer has done with it",
			func() bool { return r.double > 0 || r.level == Async || r.intents() == 0 })
		lags()
		return r.end(false)
	}},
	{"two writers: the first to commit comes last to the caches", func(r *run) staleness {
		second := *r
		second.new = "newer"
		at(r.t, "committed", func() { r.check(second.write()); r.stale() })
		r.check(r.write())
		return r.end(false)
	}},
	{"the process is killed between the commit and the invalidation", func(r *run) staleness {
		r.dies(child{Level: r.level, Through: r.through, Place: "committed", DoubleDelete: r.double})
		return r.end(false)
	}},
	{"Redis is out of the writer's reach from the commit on, for a while", func(r *run) staleness {
		writer := *r
		writer.world = r.impatient
		cut := false
		at(r.t, "committed", func() { r.redis.Cut(); cut = true })
		for !cut { // a Redis that is slow for the moment is not what this is about
			if err := writer.write(); err != nil && !errors.Is(err, cacheaside.ErrRedis) {
				r.t.Fatal(err)
			}
		}
		before := r.stale()
		r.redis.Restore()
		return r.end(before)
	}},
	{"the connection is lost during COMMIT, which is carried out later", func(r *run) staleness {
		r.delayCommit()
		is(r.t, r.write(), ErrUnknown)
		r.stale() // so that it is cached
		r.database.Hang(false)
		r.eventually("committed", func() bool { v, err := r.load(r.t.Context(), 1); return v == r.new && err == nil })
		return r.end(false)
	}},
}

// impatient is a process that writes in the same world, and does not wait long for Redis.
func (x *world) impatient() *world {
	x.t.Helper()
	y := *x
	o := x.server.Options()
	o.Addr = x.redis.Addr
	rdb := redis.NewClient(o)
	x.t.Cleanup(func() { rdb.Close() })
	y.cache = x.newCache(rdb,
		cacheaside.Options{RedisTimeout: 60 * time.Millisecond, ReadTimeout: 60 * time.Millisecond, MemoryBytes: -1})
	y.rows = x.newLoader(y.cache, nil)
	var err error
	y.Writer, err = NewWriter(x.writes, y.cache,
		&Options{Queue: x.box, NoRelay: true, AsyncDelay: x.options.AsyncDelay})
	x.check(err)
	x.t.Cleanup(func() { y.Close() })
	y.grace = x.grace
	return &y
}

// TestRaces: who wins which race, as docs/reference/write-failures.md has it.
func TestRaces(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testRaces) }

func testRaces(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e, proxied: true})
	impatient := x.impatient()
	x.repeatAfter = 10 * time.Millisecond
	var table strings.Builder
	table.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(&table, " %s |", c.name)
	}
	table.WriteString("\n|" + strings.Repeat("---|", len(columns)+1) + "\n")
	for _, race := range races {
		fmt.Fprintf(&table, "| %s |", race.name)
		for _, c := range columns {
			x.knows()
			x.options.DoubleDelete = c.double
			impatient.options.DoubleDelete = c.double
			impatient.redisDown.Store(nil)
			fmt.Fprintf(&table, " %s |", race.run(&run{world: x, impatient: impatient, column: c, new: "new"}))
		}
		table.WriteString("\n")
	}
	text, err := os.ReadFile("../docs/reference/write-failures.md")
	x.check(err)
	if !strings.Contains(string(text), table.String()) {
		t.Errorf("docs/reference/write-failures.md has it otherwise:\n%s", table.String())
	}
}
