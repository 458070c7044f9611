package bloom

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestDropsDelayRebuilds: the delay of the next rebuild grows with the number of consecutive
// drops. A drop is consecutive if it comes within an hour, or within twice the delay.
func TestDropsDelayRebuilds(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	var none *falseNegative
	if none.delaysRebuild(now) {
		t.Error("a filter that was never dropped waits")
	}
	if first := none.next(now); first.Drops != 1 || first.delaysRebuild(now) {
		t.Errorf("the first drop: %+v", first)
	}
	const day = 24 * time.Hour
	for drops, delay := range map[int]time.Duration{2: 4 * time.Minute, 3: 8 * time.Minute, 9: 512 * time.Minute,
		12: day, 40: day} {
		f := none
		for range drops {
			f = f.next(now)
		}
		if !f.delaysRebuild(now.Add(delay-time.Second)) || f.delaysRebuild(now.Add(delay)) ||
			f.delaysRebuild(now.Add(-time.Second)) {
			t.Errorf("%d drops: %+v", drops, f)
		}
		remembered := max(time.Hour, 2*delay)
		if next := f.next(now.Add(remembered - time.Second)); next.Drops <= 2 {
			t.Errorf("%d drops, and another one just before they are forgotten: %+v", drops, next)
		}
		if next := f.next(now.Add(remembered)); next.Drops != 1 {
			t.Errorf("%d drops, and another one when they are forgotten: %+v", drops, next)
		}
	}
}

// reportable is a filter that loaders report false negatives to.
type reportable interface {
	rebuildable
	Hidden(ctx context.Context, key string) error
	Stats() Stats
}

// TestHiddenDropsTheFilter: a report makes the filter return "maybe" until the next Rebuild, and
// does so again after that. A report of a key that the filter contains changes nothing.
func TestHiddenDropsTheFilter(t *testing.T) {
	eachRebuilt(t, func(t *testing.T, filter rebuildable) {
		f := filter.(reportable)
		for reports := range int64(2) {
			must(t, errorOf(f.Rebuild(t.Context(), Keys(numbered(10)...), none)))
			must(t, f.Hidden(t.Context(), numbered(1)[0]))
			if mightContain(t, f, "row") || f.Stats().Hidden != reports {
				t.Fatalf("the filter does not serve: %+v", f.Stats())
			}
			must(t, f.Hidden(t.Context(), "row"))
			must(t, f.Hidden(t.Context(), "another row")) // of the filter that is gone
			if !mightContain(t, f, "row") || !mightContain(t, f, "nobody") || f.Stats().Hidden != reports+1 {
				t.Fatalf("the filter still serves: %+v", f.Stats())
			}
		}
	})
}

// TestFailedReportIsAnError: a report that could not drop the filter returns an error. When it is
// repeated, it drops the filter.
func TestFailedReportIsAnError(t *testing.T) {
	refused := errors.New("refused")
	_, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	must(t, errorOf(f.Rebuild(t.Context(), Keys(numbered(10)...), none)))
	var fail atomic.Bool
	fail.Store(true)
	hook(rdb, &tap{before: func(cmds []redis.Cmder) error {
		if args := cmds[0].Args(); len(args) > 1 && args[1] == swapScript && fail.Load() {
			return refused
		}
		return nil
	}})
	if err := f.Hidden(t.Context(), "row"); !errors.Is(err, refused) || mightContain(t, f, "row") {
		t.Fatalf("the filter was dropped: %v", err)
	}
	fail.Store(false)
	must(t, f.Hidden(t.Context(), "row"))
	if !mightContain(t, f, "row") {
		t.Error("the filter still serves")
	}
}

// TestConcurrentReportsAreOneDrop: reports of several rows that the same filter hides do not delay
// its rebuild.
func TestConcurrentReportsAreOneDrop(t *testing.T) {
	eachRebuilt(t, func(t *testing.T, filter rebuildable) {
		f := filter.(reportable)
		must(t, errorOf(f.Rebuild(t.Context(), Keys(numbered(10)...), none)))
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for range 20 {
			wg.Go(func() {
				<-begin
				if err := f.Hidden(context.Background(), "row"); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		wg.Wait()
		last := (*falseNegative)(nil)
		switch f := filter.(type) {
		case *Redis:
			d, err := f.fetchDescriptor(t.Context(), f.longTimeout())
			must(t, err)
			last = d.FalseNegative
		case *Local:
			last = f.current.Load().falseNegative
		}
		if last == nil || last.Drops != 1 {
			t.Errorf("%+v", last)
		}
	})
}
