package promises

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// byParityAndColor returns options with groups that follow from the key ("even", "odd") and from
// the value (its first word).
func byParityAndColor() *cacheaside.LoaderOptions {
	return &cacheaside.LoaderOptions{Groups: cacheaside.GroupsOf(func(key int, row string) []string {
		color, _, _ := strings.Cut(row, " ")
		return []string{[]string{"even", "odd"}[key%2], color}
	})}
}

func (p process) invalidateGroup(t testing.TB, name string) {
	t.Helper()
	if err := p.InvalidateGroup(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

func (p process) freshly(t testing.TB, key int, want string) {
	t.Helper()
	if got, err := p.Get(t.Context(), key, cacheaside.Fresh); got != want || err != nil {
		t.Errorf("a fresh Get(%d) = %q, %v; want %q", key, got, err, want)
	}
}

// An InvalidateGroup outdates the values of the group, in all processes, and nothing else.
func TestInvalidateGroup(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		rows := make(map[int]string)
		for i := range 40 { // in all ranges of a cluster
			rows[i] = "red old"
		}
		d := newTable(rows)
		p, q := start(t, b, d, patient, byParityAndColor()), start(t, b, d, patient, byParityAndColor())
		bare := start(t, b, d, noMemory, byParityAndColor())
		for i := range 40 {
			for _, x := range []process{p, q, bare} {
				x.want(t, i, "red old", nil)
			}
		}
		if n := d.loads.Load(); n != 40 {
			t.Fatalf("%d loads", n)
		}
		for i := range 40 {
			d.write(i, "blue new")
		}
		p.invalidateGroup(t, "even")
		for i := range 40 {
			want := []string{"blue new", "red old"}[i%2]
			p.want(t, i, want, nil)
			bare.freshly(t, i, want)
			q.sees(t, i, want)
		}
		if n := d.loads.Load(); n != 60 {
			t.Errorf("%d loads", n)
		}
		p.invalidateGroup(t, "green") // no value belongs to it
		q.invalidateGroup(t, "red")   // only the odd ones still belong to it
		for i := range 40 {
			q.want(t, i, "blue new", nil)
			bare.freshly(t, i, "blue new")
			p.sees(t, i, "blue new")
		}
		if n := d.loads.Load(); n != 80 {
			t.Errorf("%d loads", n)
		}
	})
}

// The result of a load that is in progress during an InvalidateGroup is not served afterwards,
// although its groups were unknown.
func TestGroupDuringLoad(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		for name, o := range map[string]cacheaside.Options{"memory": patient, "no memory": noMemory} {
			t.Run(name, func(t *testing.T) {
				flushAll(t, b)
				d := newTable(map[int]string{1: "red old"})
				p, q := start(t, b, d, o, byParityAndColor()), start(t, b, d, o, byParityAndColor())
				reached, resume := d.pause(1)
				running := later(func() (string, error) { return q.Get(t.Context(), 1) })
				reach(t, reached, "the load")
				d.write(1, "red new")
				p.invalidateGroup(t, "red")
				resume()
				if _, err := running(t); err != nil { // it began before, so both values are correct
					t.Fatal(err)
				}
				p.want(t, 1, "red new", nil)
				q.freshly(t, 1, "red new")
				q.sees(t, 1, "red new")
				if n := d.loads.Load(); n != 2 {
					t.Errorf("%d loads", n)
				}
			})
		}
	})
}

// A value that was loaded after an InvalidateGroup is served, by all processes, without another
// load.
func TestGroupIsLoadedOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newTable(map[int]string{1: "red old"})
		p, q := start(t, b, d, patient, byParityAndColor()), start(t, b, d, noMemory, byParityAndColor())
		p.want(t, 1, "red old", nil)
		for i := range 5 {
			row := fmt.Sprintf("red %d", i)
			d.write(1, row)
			[]process{p, q}[i%2].invalidateGroup(t, "red")
			q.freshly(t, 1, row)
			p.sees(t, 1, row)
			p.awaitMemory(t, 1, row)
		}
		if n := d.loads.Load(); n != 6 {
			t.Errorf("%d loads", n)
		}
	})
}

// groupsKey returns the name of the set of invalidated groups of the loader row.
func groupsKey() string { return keys.Groups("cacheaside", "row", conn.Tag(0)) }

// If Redis loses the invalidations of groups, everything from before is loaded again.
func TestLostGroupNumbersOutdateValues(t *testing.T) {
	b := realBackend(t)
	for name, lose := range map[string]func(rdb redis.UniversalClient, ctx context.Context) error{
		"the set": func(rdb redis.UniversalClient, ctx context.Context) error { return rdb.Del(ctx, groupsKey()).Err() },
		"the set and the numbers": func(rdb redis.UniversalClient, ctx context.Context) error {
			return rdb.Del(ctx, groupsKey(), "cacheaside::announced:{"+conn.Tag(0)+"}").Err()
		},
		// As in a failover.
		"the last invalidation": func(rdb redis.UniversalClient, ctx context.Context) error {
			return rdb.ZPopMax(ctx, groupsKey()).Err()
		},
		"another type": func(rdb redis.UniversalClient, ctx context.Context) error {
			return rdb.Set(ctx, groupsKey(), "x", 0).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			flushAll(t, b)
			d := newTable(map[int]string{1: "red old", 2: "red old"})
			p, q := start(t, b, d, noMemory, byParityAndColor()), start(t, b, d, noMemory, byParityAndColor())
			p.want(t, 1, "red old", nil)
			q.want(t, 2, "red old", nil)
			p.invalidateGroup(t, "blue")
			q.freshly(t, 2, "red old") // q knows the number of blue
			d.write(1, "red new")
			d.write(2, "red new")
			if err := lose(b.admin, t.Context()); err != nil {
				t.Fatal(err)
			}
			p.invalidateGroup(t, "red")
			q.freshly(t, 1, "red new")
			q.freshly(t, 2, "red new")
			d.write(1, "red newer")
			p.invalidateGroup(t, "red")
			q.freshly(t, 1, "red newer")
		})
	}
}

// Without Redis, only this process's memory counts.
func TestInvalidateGroupWithoutRedis(t *testing.T) {
	d := newTable(map[int]string{1: "red old", 2: "red old"})
	p := startOn(t, nil, d, patient, byParityAndColor())
	p.remembers(t, 1, "red old")
	p.remembers(t, 2, "red old")
	d.write(1, "blue new")
	d.write(2, "blue new")
	p.invalidateGroup(t, "odd")
	p.want(t, 1, "blue new", nil)
	p.want(t, 2, "red old", nil)
	p.remembers(t, 1, "blue new")
	p.invalidateGroup(t, "red")
	p.want(t, 2, "blue new", nil)

	d.write(1, "blue newer")
	reached, resume := d.pause(d.loads.Load() + 1)
	p.invalidateGroup(t, "odd")
	running := later(func() (string, error) { return p.Get(t.Context(), 1) })
	reach(t, reached, "the load")
	d.write(1, "blue newest")
	p.invalidateGroup(t, "odd")
	resume()
	if _, err := running(t); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "blue newest", nil)
}

func TestInvalidateGroupErrors(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "red"})
	p := start(t, b, d, patient, byParityAndColor())
	_, other := embedded(t)
	plain := start(t, other, d, patient, nil)
	for _, c := range []struct {
		of   process
		name string
		want string
	}{
		{p, "", "a group needs a name"},
		{plain, "red", "no LoaderOptions.Groups"},
	} {
		err := c.of.InvalidateGroup(t.Context(), c.name)
		if e, ok := errors.AsType[*cacheaside.Error](err); !ok || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "red") && c.name == "red" {
			t.Errorf("%q: %v, %v", c.name, err, e)
		}
	}
	p.cache.Close()
	if err := p.InvalidateGroup(t.Context(), "red"); !errors.Is(err, cacheaside.ErrClosed) {
		t.Error(err)
	}
	if _, err := cacheaside.NewLoader(plain.cache, "other", d.load,
		&cacheaside.LoaderOptions{Groups: cacheaside.GroupsOf(
			func(string, string) []string {
				return nil
			})}); err == nil || !strings.Contains(err.Error(), "LoaderOptions.Groups") {
		t.Error(err)
	}
}

// A program without Groups that shares the loader detects groups and does no harm.
func TestProgramWithoutGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "red old", 2: "red old"})
		plain := start(t, b, d, patient, nil)
		defer plain.cache.Close()
		plain.want(t, 1, "red old", nil)
		p := start(t, b, d, patient, byParityAndColor())
		defer p.cache.Close()
		d.write(1, "red new")
		p.want(t, 1, "red new", nil) // the entry without groups is outdated
		time.Sleep(2 * time.Second)
		plain.want(t, 1, "red new", nil)
		plain.want(t, 2, "red old", nil)
		loads := d.loads.Load()
		p.want(t, 2, "red old", nil)
		if n := d.loads.Load(); n != loads {
			t.Errorf("%d loads", n-loads)
		}
		d.write(2, "red new")
		p.invalidateGroup(t, "even")
		synctest.Wait()
		plain.want(t, 2, "red new", nil)
		plain.freshly(t, 1, "red new")
		if s := plain.Stats(); s.Undecodable != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The memory of another process is outdated within MaxStaleness even if the announcement is lost.
func TestGroupInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "red old"})
		p, q := start(t, b, d, patient, byParityAndColor()), start(t, b, d, patient, byParityAndColor())
		defer p.cache.Close()
		defer q.cache.Close()
		p.remembers(t, 1, "red old")
		d.write(1, "red new")
		options := *b.admin.(*redis.Client).Options()
		rdb := redis.NewClient(&options)
		defer rdb.Close()
		rdb.AddHook(hooked{before: func(cmd redis.Cmder) {
			if strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(fmt.Sprint(cmd.Args()...), "::groups:") {
				cmd.Args()[5] = "another channel"
			}
		}, after: func(redis.Cmder) {}})
		silent := startOn(t, rdb, d, noMemory, byParityAndColor())
		defer silent.cache.Close()
		silent.want(t, 1, "red old", nil)
		silent.invalidateGroup(t, "red")
		p.want(t, 1, "red old", nil)
		time.Sleep(2 * time.Second)
		p.want(t, 1, "red new", nil)
		q.want(t, 1, "red new", nil)
	})
}

// If an eviction of the set hides an InvalidateGroup, and its announcement is lost too, the new
// floor outdates memory. The gap in the announcements alone is not sufficient: memory reads the old
// entry again.
func TestGroupInMemoryWithLostSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "red old", 2: "blue"})
		o := steady
		o.MaxStaleness = 4 * time.Second
		lo := byParityAndColor()
		lo.MemoryTTL, lo.TTL = time.Hour, time.Hour
		q := start(t, b, d, o, lo)
		defer q.cache.Close()
		var silent atomic.Bool
		options := *b.admin.(*redis.Client).Options()
		rdb := redis.NewClient(&options)
		defer rdb.Close()
		rdb.AddHook(hooked{before: func(cmd redis.Cmder) {
			if strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(fmt.Sprint(cmd.Args()...), "::groups:") &&
				silent.Load() {
				cmd.Args()[5] = "another channel"
			}
		}, after: func(redis.Cmder) {}})
		p := startOn(t, rdb, d, steady, byParityAndColor())
		defer p.cache.Close()
		q.want(t, 1, "red old", nil)
		p.want(t, 2, "blue", nil)
		synctest.Wait()
		if err := b.admin.Del(t.Context(), groupsKey()).Err(); err != nil { // an eviction
			t.Fatal(err)
		}
		silent.Store(true)
		d.write(1, "red new")
		p.invalidateGroup(t, "red")
		silent.Store(false)
		if err := p.Invalidate(t.Context(), 2); err != nil { // reveals the gap
			t.Fatal(err)
		}
		synctest.Wait()
		q.Get(t.Context(), 1) // within MaxStaleness it may be old
		q.settle()
		time.Sleep(o.MaxStaleness)
		q.want(t, 1, "red new", nil)
	})
}

// The sets of groups expire after the last process with the loader ends, so Redis does not keep
// sets of old loaders. Processes renew them, and so does each InvalidateGroup.
func TestSetsOfGroupsExpire(t *testing.T) {
	const day = 24 * time.Hour
	embeddedBubble(t, func(t *testing.T, m *miniredis.Miniredis, b backend) {
		d := newTable(map[int]string{1: "red"})
		outlives := byParityAndColor() // entries that outlive the set are then outdated
		outlives.TTL = 90 * day
		p := start(t, b, d, rarelyPolling, outlives)
		set := keys.Groups("cacheaside", "row", tagOfAll)
		life := func(what string, least time.Duration) {
			t.Helper()
			if ttl := m.TTL(set); ttl <= least || ttl > 30*day {
				t.Errorf("%s the set has a TTL of %v", what, ttl)
			}
		}
		life("when it was created,", 29*day)
		m.FastForward(20 * day)
		p.invalidateGroup(t, "red")
		life("after an invalidation", 29*day)
		m.FastForward(20 * day)
		time.Sleep(61 * time.Minute)
		life("renewed by a process,", 29*day)
		p.want(t, 1, "red", nil)
		p.cache.Close()

		time.Sleep(30 * day)
		m.FastForward(30 * day)
		if m.Exists(set) {
			t.Error("an unused set does not expire")
		}
		d.write(1, "blue")
		if !m.Exists(redisKey(1)) {
			t.Fatal("the entry has expired too")
		}
		q := start(t, b, d, rarelyPolling, outlives)
		defer q.cache.Close()
		q.want(t, 1, "blue", nil)
	})
}
