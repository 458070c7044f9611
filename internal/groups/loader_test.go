package groups

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// recorder records what a Loader does, and whether its log contained the invalidation when it
// held a group. Forget is called under the lock of the log.
type recorder struct {
	l   *Loader
	did []string
}

func observed(o Options, seen func(l *Loader) bool) (*Loader, *recorder) {
	r := &recorder{}
	name := func(group uint64) string {
		switch group {
		case all:
			return "all"
		case r.l.FloorHash():
			return "floor"
		default:
			return fmt.Sprint(group)
		}
	}
	o.All = all
	o.Forget = func(group uint64) { r.did = append(r.did, "forget "+name(group)) }
	o.Hold = func(group uint64) { r.did = append(r.did, fmt.Sprint("hold ", name(group), " ", seen(r.l))) }
	r.l = New(o)
	return r.l, r
}

func (r *recorder) want(t *testing.T, step string, want ...string) {
	t.Helper()
	if !slices.Equal(r.did, want) {
		t.Errorf("%s: %q, want %q", step, r.did, want)
	}
	r.did = nil
}

// The hold comes first. A load that misses the hold has taken the log's last number before, so its
// value is outdated. Memory learns of all groups before it learns of the group. A floor holds all
// groups, because it replaces numbers that are not known.
func TestOrder(t *testing.T) {
	outdated := func(l *Loader) bool { return !l.Current(0, 10, SetOf(7)) }
	l, r := observed(Options{InUse: true, Lag: 10 * time.Microsecond}, outdated)
	l.Read(0, 0, []Record{floorAt(10)})
	r.want(t, "a floor", "hold floor true", "hold all true")
	steps := []string{"hold 7 false", "hold all false", "forget all", "forget 7"}
	l.Announced(0, SetOf(7), 20)
	r.want(t, "an announcement", steps...)
	if l.Current(1, 10, SetOf(7)) || l.Last(1) != 0 {
		t.Error("another range has been read")
	}
	l.Read(1, 0, []Record{floorAt(5)})
	if !l.Current(1, 10, SetOf(7)) {
		t.Error("outdated in another range")
	}

	l, r = observed(Options{InUse: true, Lag: 10 * time.Microsecond}, outdated)
	l.Read(0, 0, []Record{floorAt(10)})
	r.did = nil
	l.Read(0, 0, []Record{floorAt(10), record(7, 20)})
	r.want(t, "news", steps...)
	l.Read(0, 0, []Record{record(7, 20)})
	r.want(t, "no news")

	l, r = observed(Options{InUse: true, Lag: 10 * time.Microsecond, Local: true},
		func(l *Loader) bool { return !l.Current(0, 1, SetOf(7)) })
	l.Invalidate(SetOf(7))
	r.want(t, "without Redis", steps...)
	l.Forget(SetOf(7))
	r.want(t, "an invalidation that has failed", "forget all", "forget 7")
}

// A process that starts does not hold groups because of invalidations that are older than the lag.
func TestHoldsOnlyRecent(t *testing.T) {
	l, r := observed(Options{InUse: true, Lag: 5 * time.Microsecond}, func(*Loader) bool { return false })
	if !l.Read(0, 0, []Record{floorAt(10), record(1, 20), record(2, 96), record(3, 100)}) {
		t.Error("lost")
	}
	r.did = slices.DeleteFunc(r.did, func(s string) bool { return s[0] == 'f' })
	r.want(t, "the first news", "hold 2 false", "hold all false", "hold 3 false", "hold all false")
}

func TestDiscover(t *testing.T) {
	n := 0
	l := New(Options{All: all, Discovered: func() { n++ }})
	if l.InUse() {
		t.Error("in use")
	}
	l.Announced(0, SetOf(7), 20)
	if !l.InUse() || n != 1 {
		t.Errorf("after an announcement, in use is %v, after %d calls", l.InUse(), n)
	}
	l.Discover()
	l.Discover()
	l.Announced(0, SetOf(7), 30)
	if !l.InUse() || n != 1 {
		t.Errorf("in use is %v, after %d calls", l.InUse(), n)
	}
	if l.AllHash() != all || l.All().Len() != 1 || l.All().Hash(0) != all {
		t.Errorf("%x", []byte(l.All()))
	}
	known := New(Options{All: all, InUse: true})
	known.Discover()
	known.Announced(0, SetOf(7), 20) // without memory, holds or a callback
	known.Forget(SetOf(7))
}

// Memory is outdated before a loader without groups counts as one with groups for any goroutine.
func TestDiscoveryOutdatesMemoryFirst(t *testing.T) {
	var did []string
	entered, proceed := make(chan struct{}), make(chan struct{})
	l := New(Options{
		All:        all,
		Void:       func() { close(entered); <-proceed; did = append(did, "void") },
		Discovered: func() { did = append(did, "discovered") },
	})
	var wg sync.WaitGroup
	first := make(chan struct{})
	wg.Go(func() { l.Discover(); close(first) })
	select {
	case <-entered:
	case <-first:
		t.Fatal("memory is not outdated")
	}
	second := make(chan struct{})
	wg.Go(func() { l.Announced(0, SetOf(7), 20); close(second) })
	select {
	case <-second:
		t.Error("an invalidation is applied before memory is outdated")
	default:
	}
	close(proceed)
	wg.Wait()
	if !l.InUse() || !slices.Equal(did, []string{"void", "discovered"}) || l.Current(0, 10, nil) {
		t.Errorf("%q", did)
	}
}
