package promises

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
)

// expiring returns options with one group for all rows whose text begins with the same word.
func expiring() *cacheaside.LoaderOptions {
	lo := byParityAndColor()
	lo.EarlyRefresh = -1
	return lo
}

// A group of many hot values that has expired is served while one process reloads each of them
// once, although far fewer loads may run at a time. No read fails, and other groups stay fresh.
func TestExpireGroup(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		const hot, maxLoads = 40, 2
		for _, o := range []cacheaside.Options{patient, noMemory} {
			o.MaxLoads, o.MaxQueue = maxLoads, -1
			flushAll(t, b)
			rows := map[int]string{hot: "blue"}
			for i := range hot {
				rows[i] = fmt.Sprint("red ", i)
			}
			d := newTable(rows)
			p, q := start(t, b, d, o, expiring()), start(t, b, d, o, expiring())
			for i := range hot + 1 {
				for _, x := range []process{p, q} {
					x.want(t, i, rows[i], nil)
				}
			}
			release := make(chan struct{})
			d.mu.Lock()
			d.read = func(ctx context.Context, _ int64) error {
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			d.mu.Unlock()
			for i := range hot {
				d.write(i, fmt.Sprint("red new ", i))
			}
			if err := p.ExpireGroup(t.Context(), "red"); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				for i := range hot {
					old, err := p.Get(t.Context(), i)
					fresh, freshErr := q.Get(t.Context(), i, cacheaside.Fresh)
					if want := fmt.Sprint("red ", i); old != want || err != nil || fresh != want || freshErr != nil {
						t.Fatalf("%q, %v; with Fresh %q, %v; want %q", old, err, fresh, freshErr, want)
					}
				}
			}
			if s := p.Stats(); s.Stale < 2*hot {
				t.Errorf("%+v", s)
			}
			p.want(t, hot, "blue", nil)
			q.freshly(t, hot, "blue")
			close(release)
			for i := range hot {
				for _, x := range []process{p, q} {
					waitFor(t, func() bool {
						v, _ := x.Get(t.Context(), i, cacheaside.Fresh)
						return v == fmt.Sprint("red new ", i)
					})
				}
			}
			if n := d.loads.Load(); n != 2*hot+1 {
				t.Errorf("%d loads, want %d", n, 2*hot+1)
			}
		}
	})
}

// A load that is in progress during an ExpireGroup is not fresh afterwards, neither in Redis nor in
// memory.
func TestExpireGroupDuringLoad(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for _, o := range []cacheaside.Options{patient, noMemory} {
			flushAll(t, b)
			d := newTable(map[int]string{1: "red old"})
			p, q := start(t, b, d, o, expiring()), start(t, b, d, o, expiring())
			reached, resume := d.pause(1)
			running := later(func() (string, error) { return q.Get(t.Context(), 1) })
			reach(t, reached, "the load")
			d.write(1, "red new")
			if err := p.ExpireGroup(t.Context(), "red"); err != nil {
				t.Fatal(err)
			}
			resume()
			if v, err := running(t); v != "red old" || err != nil {
				t.Errorf("the load: %q, %v", v, err)
			}
			for _, x := range []process{p, q} {
				waitFor(t, func() bool { v, _ := x.Get(t.Context(), 1); return v == "red new" })
			}
			if n := d.loads.Load(); n != 2 {
				t.Errorf("%d loads", n)
			}
		}
	})
}

// An expired group is served while loads fail. An InvalidateGroup ends that.
func TestExpireGroupWhileLoadsFail(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newTable(map[int]string{1: "red"})
		p := start(t, b, d, noMemory, expiring())
		p.want(t, 1, "red", nil)
		d.fail(errBroken)
		if err := p.ExpireGroup(t.Context(), "red"); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			p.freshly(t, 1, "red")
		}
		p.invalidateGroup(t, "red")
		if _, err := p.Get(t.Context(), 1); !errors.Is(err, errBroken) {
			t.Errorf("after InvalidateGroup: %v", err)
		}
	})
}

// Without stale values, ExpireGroup is InvalidateGroup. So is it in a process whose options have
// none, if another process expires the group.
func TestExpireGroupWithoutStaleValues(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		none := expiring()
		none.StaleFor = -1
		for i, los := range [][2]*cacheaside.LoaderOptions{{none, expiring()}, {expiring(), none}} {
			flushAll(t, b)
			d := newTable(map[int]string{1: "red old"})
			p, q := start(t, b, d, noMemory, los[0]), start(t, b, d, noMemory, none)
			p.want(t, 1, "red old", nil)
			d.write(1, "red new")
			if err := p.ExpireGroup(t.Context(), "red"); err != nil {
				t.Fatal(err)
			}
			if v, err := q.Get(t.Context(), 1, cacheaside.Fresh); v != "red new" || err != nil {
				t.Errorf("%d: %q, %v", i, v, err)
			}
		}
	})
}

// A loader without Groups, and an empty name, are errors.
// While the reload of an expired group hangs, its value is served until the end of StaleFor. The
// claim of the reload keeps the key in Redis, but does not extend that time.
func TestExpireGroupDoesNotExtendStaleFor(t *testing.T) {
	lo := expiring()
	lo.TTL, lo.StaleFor, lo.Jitter, lo.LoadTimeout = 2*time.Second, time.Second, -1, 20*time.Second
	bubble(t, noMemory, lo, func(t *testing.T, _ backend, d *table, p, q process) {
		d.write(1, "red old")
		p.want(t, 1, "red old", nil)
		stored := time.Now()
		d.read = func(ctx context.Context, _ int64) error {
			<-ctx.Done()
			return ctx.Err()
		}
		if err := p.ExpireGroup(t.Context(), "red"); err != nil {
			t.Fatal(err)
		}
		for time.Since(stored) < 3*time.Second {
			p.freshly(t, 1, "red old")
			time.Sleep(100 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if v, err := q.Get(ctx, 1); v != "" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after its load: %q, %v", time.Since(stored), v, err)
		}
	})
}

// A loader without Groups, and a name of none, are errors.
func TestExpireGroupErrors(t *testing.T) {
	_, b := embedded(t)
	p := start(t, b, newTable(nil), noMemory, nil)
	if err := p.ExpireGroup(t.Context(), "red"); err == nil {
		t.Error("ExpireGroup succeeds without groups")
	}
	q := startOn(t, nil, newTable(map[int]string{1: "red"}), cacheaside.Options{}, expiring())
	if err := q.ExpireGroup(t.Context(), ""); err == nil {
		t.Error("ExpireGroup accepts an empty name")
	}
	q.want(t, 1, "red", nil)
	q.settle()
	if err := q.ExpireGroup(t.Context(), "red"); err != nil {
		t.Fatal(err)
	}
	q.want(t, 1, "red", nil)
	if s := q.Stats(); s.Loads != 2 {
		t.Errorf("without Redis: %+v", s)
	}
}
