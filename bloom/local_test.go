package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func newLocal(t testing.TB, capacity uint64, rate float64) *Local {
	t.Helper()
	l, err := NewLocal(capacity, rate)
	must(t, err)
	return l
}

// complete builds a filter of these keys.
func complete(t testing.TB, l *Local, keys ...string) {
	t.Helper()
	b, _, err := l.build(t.Context(), 0)
	must(t, err)
	must(t, b.Add(t.Context(), keys))
	must(t, b.Finish(t.Context()))
}

func keysOf(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, i)
	}
	return keys
}

func TestLocal(t *testing.T) {
	l, err := NewLocal(1000, 0.01)
	must(t, err)
	ctx := t.Context()
	must(t, l.Add(ctx, "early"))
	if !mightContain(t, l, "nobody") {
		t.Fatal("a filter that is not complete has said no")
	}
	if maybe, _ := l.MightContainMany(ctx, []string{"a", "b"}); !maybe[0] || !maybe[1] {
		t.Fatal("nor of many")
	}
	keys := keysOf("key", 1100)
	complete(t, l, keys[:500]...)
	must(t, l.AddMany(ctx, keys[500:900]))
	for _, key := range keys[900:] {
		must(t, l.Add(ctx, key))
	}
	maybe, _ := l.MightContainMany(ctx, append(keys, keysOf("absent", 1000)...))
	absent := 0
	for i, m := range maybe {
		if i < len(keys) && !m {
			t.Fatalf("key %d is missed", i)
		} else if !m {
			absent++
		}
	}
	if absent < 960 {
		t.Errorf("%d of 1000 are absent", absent)
	}
	if mightContain(t, l, "none") {
		t.Error("none is there")
	}
	l.NotFound(7)
	must(t, l.Deleted(ctx, 5))
	s, _ := l.State(ctx)
	if s.Keys < 1060 || s.Keys > 1140 || s.Capacity != 1000 || !s.Built || s.Deleted != 5 || s.Fill() < 0.45 ||
		s.Fill() > 0.6 {
		t.Errorf("%+v", s)
	}
	if st := l.Stats(); st.Lost != 3 || st.Unknown != 3 || st.Absent != int64(absent)+1 ||
		st.Present != int64(len(maybe)-absent) || st.FalsePositives != 7 || st.Added != 601 {
		t.Errorf("%+v", st)
	}
	complete(t, l, keys...) // larger, by what it holds
	if s, _ := l.State(ctx); s.Capacity < 1300 || s.Deleted != 0 {
		t.Errorf("rebuilt: %+v", s)
	}
	must(t, l.Close())
}

func TestLocalOptions(t *testing.T) {
	for want, o := range map[string]struct {
		capacity uint64
		rate     float64
	}{
		"capacity 0": {0, 0.01},
		"rate 0":     {1, 0},
		"rate 0.6":   {1, 0.6},
	} {
		if l, err := NewLocal(o.capacity, o.rate); err == nil || !strings.Contains(err.Error(), want) || l != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestLocalFollowsRebuild: keys that are being added when a generation is begun are in it.
func TestLocalFollowsRebuild(t *testing.T) {
	keys := keysOf("key", 30_000)
	for range 100 {
		l := newLocal(t, 1000, 0.01)
		complete(t, l)
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.AddMany(t.Context(), keys)
		}()
		for at := l.current.Load().active; atomic.LoadUint64(&at.Words[0]) == 0 && l.counts.added.Load() == 0; {
			// until the first are there
			runtime.Gosched()
		}
		b, _, _ := l.build(t.Context(), 0)
		amid := l.counts.added.Load() == 0 // none of its rows is committed at this point
		<-done
		must(t, b.Finish(t.Context()))
		if !amid {
			continue
		}
		for _, key := range keys {
			if !mightContain(t, l, key) {
				t.Fatalf("%s is missed", key)
			}
		}
		return
	}
	t.Log("no rebuild has begun while keys were added: this machine is too much of one piece")
}

// TestLocalCommitted: a rebuild has read the table between Inserting and the commit.
func TestLocalCommitted(t *testing.T) {
	l := newLocal(t, 1000, 0.01)
	complete(t, l)
	committed, err := l.Inserting(t.Context(), []string{"row"})
	must(t, err)
	b, _, err := l.build(t.Context(), 0)
	must(t, err)
	must(t, committed(t.Context()))
	must(t, b.Finish(t.Context()))
	if !mightContain(t, l, "row") {
		t.Fatal("the row is missed")
	}
}

// TestLocalCommittedAtOnce: several goroutines may call committed.
func TestLocalCommittedAtOnce(t *testing.T) {
	l := newLocal(t, 1000, 0.01)
	committed, err := l.Inserting(t.Context(), []string{"row"})
	must(t, err)
	complete(t, l)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := committed(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if !mightContain(t, l, "row") {
		t.Fatal("the row is missed")
	}
}

// TestLocalCloseEndsMaintain: also while it waits for the next check.
func TestLocalCloseEndsMaintain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, 1000, 0.01)
		ended := make(chan error, 1)
		go func() { ended <- l.Maintain(t.Context(), Keys("row"), &MaintainOptions{Check: 24 * time.Hour}) }()
		synctest.Wait()
		closed := time.Now()
		l.Close()
		if err := <-ended; err != errClosed || time.Since(closed) > time.Second {
			t.Error(err, time.Since(closed))
		}
	})
}

// TestLocalCloseEndsRebuild: it does not go on reading the table.
func TestLocalCloseEndsRebuild(t *testing.T) {
	l := newLocal(t, 1000, 0.01)
	read := 0
	_, err := l.Rebuild(t.Context(), func(context.Context, string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for l.Close(); read < 1000 && yield(fmt.Sprint(read), nil); read++ {
			}
		}
	}, &RebuildOptions{batchSize: 10})
	if !errors.Is(err, errClosed) || read > 10 {
		t.Error(err, read)
	}
}

// TestLocalBeginsAnew: a rebuild has nothing of what another has left.
func TestLocalBeginsAnew(t *testing.T) {
	l, ctx := newLocal(t, 1000, 0.01), t.Context()
	first, _, _ := l.build(ctx, 0)
	must(t, first.Add(ctx, []string{"a", "b"}))
	second, _, _ := l.build(ctx, 0)
	must(t, second.Finish(ctx))
	if mightContain(t, l, "a") {
		t.Error("it has what the first was given")
	}
}

// TestLocalFreesWhatIsAbandoned: what a rebuild that fails has built is not kept, nor added to.
func TestLocalFreesWhatIsAbandoned(t *testing.T) {
	l := newLocal(t, 1000, 0.01)
	complete(t, l, numbered(100)...)
	interrupt(t, l, numbered(100))
	if h := l.current.Load(); h.building != nil || h.active == nil {
		t.Error("it is kept")
	}
	o := (*MaintainOptions)(nil).withDefaults()
	_, err := l.Rebuild(t.Context(), Keys(numbered(100)...), nil)
	must(t, err)
	if due, err := l.due(t.Context(), o, &maintainState{}); due || err != nil {
		t.Error(due, err)
	}
}

// TestLocalNeverHides adds and rebuilds at the same time.
func TestLocalNeverHides(t *testing.T) {
	l, ctx := newLocal(t, 20_000, 0.01), t.Context()
	var mu sync.Mutex
	var table []string // what is committed
	read := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clip(table)
	}
	complete(t, l)
	var adders, others sync.WaitGroup
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	rnd := rand.Uint64()
	for a := range 3 {
		adders.Go(func() {
			for i := range 1500 {
				key := fmt.Sprint(rnd, a, "/", i)
				committed, err := l.Inserting(ctx, []string{key})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				table = append(table, key)
				mu.Unlock()
				if err := committed(ctx); err != nil {
					t.Error(err)
				}
				if m, _ := l.MightContain(ctx, key); !m {
					t.Errorf("%s is missed at once", key)
				}
			}
		})
	}
	others.Go(func() {
		for stop.Err() == nil {
			b, _, err := l.build(ctx, 0)
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Duration(rand.N(int(time.Millisecond))))
			b.Add(ctx, read())
			b.Finish(ctx)
		}
	})
	adders.Wait()
	cancel()
	others.Wait()
	for _, key := range read() {
		if !mightContain(t, l, key) {
			t.Fatalf("%s is missed", key)
		}
	}
}
