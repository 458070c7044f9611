package otelcacheaside_test

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// work does what users do, with n keys, from several goroutines at once.
func (s *scene) work(n int) {
	ctx := s.Context()
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range n {
				key := fmt.Sprintf("secret-%d-%d", g, i)
				_, _ = s.users.Get(ctx, key)
				_, _ = s.users.Get(ctx, key, cacheaside.Fresh)
				_, _ = s.orders.GetMany(ctx, []int{i, i + 1, i + 2})
				if i%5 == 0 {
					_ = s.users.Invalidate(ctx, key)
					_ = s.cache.InvalidateKeys(ctx,
						cacheaside.Key{Loader: "secret-loader-" + strconv.Itoa(i), Text: key})
					_, _ = s.orders.Refresh(ctx, i)
				}
				short, cancel := context.WithTimeout(ctx, time.Duration(i%3)*time.Millisecond)
				_ = s.locker.Do(short, "secret-lock-"+strconv.Itoa(i%3), nil,
					func(context.Context, int64) error { return nil })
				_, _ = s.locker.TryAcquire(short, key, &lock.AcquireOptions{Fixed: true})
				cancel()
			}
		})
	}
	all.Wait()
}

// The page is read while the caches are at work; in the end it says what Stats say; and however
// many keys, foreign names and errors there were, there are no more series than before.
func TestScrapeUnderLoad(t *testing.T) {
	x := newScene(t, "main")
	stop := make(chan struct{})
	var scraper sync.WaitGroup
	scrapes := 0
	scraper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				x.scrape()
				scrapes++
				time.Sleep(5 * time.Millisecond) // for those that work
			}
		}
	})
	few := 5
	if testenv.Accepting {
		few = 15
	}
	x.work(few)
	first := len(x.scrape())
	x.work(10 * few)
	close(stop)
	scraper.Wait()
	var last series
	stats := x.cache.StatsByLoader()
	testenv.Eventually(x, "nothing is under way in the background", func() bool {
		last = x.scrape()
		before := stats
		stats = x.cache.StatsByLoader()
		return maps.EqualFunc(before, stats, func(a, b cacheaside.Stats) bool {
			return a.Gets == b.Gets && a.Loads == b.Loads && a.LoadErrors == b.LoadErrors &&
				a.Invalidated == b.Invalidated && a.Filtered == b.Filtered
		})
	})
	// Between the two no new kind of error need have come; those that may come are counted with the
	// first.
	kinds := make(map[string]bool)
	for name := range last {
		kinds[name[:strings.IndexByte(name+"{", '{')]] = true
	}
	t.Logf("%d scrapes; %d series of %d metrics, after %d with a tenth of the keys", scrapes, len(last),
		len(kinds), first)
	if len(last) > 1000 || len(last) > first+12*19*3 {
		// operations of three labels, with another error each: 16 buckets and 3 more
		t.Errorf("%d series, %d before", len(last), first)
	}
	for loader, s := range stats {
		labels := fmt.Sprintf(
			`{cacheaside_cache="main",cacheaside_loader="%s",otel_scope_name="github.com/cacheaside/cacheaside/otelcacheaside",otel_scope_schema_url="",otel_scope_version=""}`, loader)
		for name, want := range map[string]int64{
			"cacheaside_gets_total": s.Gets, "cacheaside_loads_total": s.Loads, "cacheaside_load_errors_total": s.LoadErrors, "cacheaside_invalidated_total": s.Invalidated, "cacheaside_filtered_total": s.Filtered,
		} {
			if got, err := strconv.ParseFloat(last[name+labels], 64); err != nil || int64(got) != want {
				t.Errorf("%s of %s is %q, want %d", name, loader, last[name+labels], want)
			}
		}
		if s.Gets == 0 || s.Loads == 0 {
			t.Errorf("%s has done nothing", loader)
		}
	}
	for _, want := range []string{
		`cacheaside_operation_duration_seconds_count{cacheaside_cache="main",cacheaside_loader="user",cacheaside_operation="load",error_type="panic"`,
		`cacheaside_operation_duration_seconds_count{cacheaside_cache="main",cacheaside_loader="user",cacheaside_operation="get",error_type="_OTHER"`,
		`cacheaside_operation_duration_seconds_count{cacheaside_cache="main",cacheaside_loader="",cacheaside_operation="invalidate"`,
		`cacheaside_operation_duration_seconds_count{cacheaside_cache="main",cacheaside_locker="lock:",cacheaside_operation="lock.wait"`,
		`cacheaside_hits_total{cacheaside_cache="main",cacheaside_loader="order",cacheaside_tier="memory"`,
		`cacheaside_filter_answers_total{cacheaside_answer="unknown",cacheaside_cache="main",cacheaside_filter="users"`,
		`cacheaside_relay_depth{cacheaside_cache="main",cacheaside_relay="orders"`,
		`cacheaside_consumer_lag_seconds{cacheaside_cache="main",cacheaside_consumer="shop"`,
		`cacheaside_bus_trusted`,
		`cacheaside_meter_checks_total{cacheaside_after="0.1",cacheaside_cache="main",cacheaside_found="consistent",cacheaside_meter="writes"`,
		`cacheaside_meter_nines{cacheaside_after="0.1"`,
	} {
		found := false
		for name := range last {
			found = found || strings.HasPrefix(name, want)
		}
		if !found {
			t.Errorf("there is no %s", want)
		}
	}
}
