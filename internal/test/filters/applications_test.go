package filters_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// application is a program with a cache, a loader and a filter named "users", with bloom.Options
// that only wait for a busy machine.
type application struct {
	filter  *bloom.Redis
	replica *bloom.Replica
	loader  *cacheaside.Loader[int64, string]
}

func newApplication(t *testing.T, rdb redis.UniversalClient, prefix string, has func(id int64) bool) application {
	t.Helper()
	a := application{filter: newFilter(t, rdb, "users", 1000)}
	var err error
	a.replica, err = bloom.NewReplica(a.filter)
	must(t, err)
	cache, err := cacheaside.New(rdb, &cacheaside.Options{Prefix: prefix})
	must(t, err)
	t.Cleanup(func() { cache.Close() })
	a.loader, err = cacheaside.NewLoader(cache, "user", func(_ context.Context, id int64) (string, error) {
		if has(id) {
			return "row", nil
		}
		return "", cacheaside.ErrNotFound
	}, &cacheaside.LoaderOptions{Filter: a.replica, AuditEvery: -1})
	must(t, err)
	return a
}

func (a application) hidden(t *testing.T, from, to int64) (n int) {
	t.Helper()
	for id := from; id < to; id++ {
		if _, err := a.loader.Get(t.Context(), id); errors.Is(err, cacheaside.ErrNotFound) {
			n++
		} else {
			must(t, err)
		}
	}
	return n
}

func inRange(from, to int64) func(int64) bool {
	return func(id int64) bool { return from <= id && id < to }
}

// TestTwoApplicationsWithOneFilterName: two applications whose caches have different prefixes use
// filters of one name. The second neither hides rows nor replaces the filter of the first.
func TestTwoApplicationsWithOneFilterName(t *testing.T) {
	servers := map[string]func(t *testing.T) redis.UniversalClient{
		"single":  func(t *testing.T) redis.UniversalClient { _, c := testenv.Mini(t); return c },
		"cluster": func(t *testing.T) redis.UniversalClient { return testenv.SharedCluster(t).Client(t) },
	}
	for name, client := range servers {
		t.Run(name, func(t *testing.T) {
			rdb := client(t)
			first := newApplication(t, rdb, "shop", inRange(0, 100))
			second := newApplication(t, rdb, "blog", inRange(300, 400))
			_, err := first.replica.Rebuild(t.Context(), bloom.Keys(numbers(0, 100)...), atOnce)
			must(t, err)
			if n := second.hidden(t, 300, 400); n > 0 {
				t.Errorf("%d of 100 rows of the second application are hidden", n)
			}
			_, err = second.filter.MightContain(t.Context(), "300")
			if !errors.Is(err, bloom.ErrForeign) {
				t.Errorf("a lookup by the second application: %v", err)
			}
			failed := make(chan error, 16)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = second.replica.Maintain(ctx, bloom.Keys(numbers(300, 400)...), &bloom.MaintainOptions{
					Rebuild: atOnce, Check: 100 * time.Millisecond, Failed: func(err error) {
						select {
						case failed <- err:
						default:
						}
					},
				})
			}()
			if err := <-failed; !errors.Is(err, bloom.ErrForeign) {
				t.Errorf("Maintain of the second application: %v", err)
			}
			cancel()
			<-ended
			if _, err := second.replica.Rebuild(t.Context(), bloom.Keys("x"), atOnce); !errors.Is(err,
				bloom.ErrForeign) {
				t.Errorf("Rebuild of the second application: %v", err)
			}
			if n := first.hidden(t, 0, 100); n > 0 {
				t.Errorf("%d of 100 rows of the first application are hidden", n)
			}
			if n := hidden(t, first.filter, numbers(1000, 1100)); n < 70 {
				t.Errorf("the filter of the first application refuses %d of 100 keys", n)
			}
			// When the first filter is gone, the second application continues alone.
			must(t, rdb.Del(t.Context(), "cacheaside::bloom:{users}").Err())
			_, err = second.replica.Rebuild(t.Context(), bloom.Keys(numbers(300, 400)...), atOnce)
			must(t, err)
			testenv.Eventually(t, "the second filter refuses keys", func() bool {
				maybe, err := second.filter.MightContain(t.Context(), "-1")
				return err == nil && !maybe
			})
		})
	}
}

// TestFilterOfEarlierVersion: an earlier version has built a filter without recording its owner. A
// cache with the filter's prefix uses it; one with another prefix rebuilds it first.
func TestFilterOfEarlierVersion(t *testing.T) {
	for _, prefix := range []string{"cacheaside", "shop"} {
		t.Run(prefix, func(t *testing.T) {
			_, rdb := testenv.Mini(t)
			_, err := newFilter(t, rdb, "users", 1000).Rebuild(t.Context(), bloom.Keys(numbers(0, 300)...), atOnce)
			must(t, err)
			a := newApplication(t, rdb, prefix, inRange(300, 600))
			refused := a.hidden(t, 300, 600)
			if own := prefix == "cacheaside"; own != (refused > 200) {
				t.Errorf("%d of 300 keys are refused", refused)
			}
			go func() {
				_ = a.replica.Maintain(t.Context(), bloom.Keys(numbers(300, 600)...), &bloom.MaintainOptions{
					Rebuild: &bloom.RebuildOptions{Settle: -1, AllowFewer: true}, Check: 100 * time.Millisecond,
				})
			}()
			if prefix != "cacheaside" {
				testenv.Eventually(t, "the filter is rebuilt, with its owner", func() bool {
					s, err := a.filter.State(t.Context())
					return err == nil && s.Owner == prefix
				})
			}
		})
	}
}

// TestFilterOfTwoCaches: one filter cannot be used by the loaders of two caches with different
// prefixes.
func TestFilterOfTwoCaches(t *testing.T) {
	_, rdb := testenv.Mini(t)
	filter := newFilter(t, rdb, "users", 1000)
	for i, prefix := range []string{"shop", "shop", "blog"} {
		cache, err := cacheaside.New(rdb, &cacheaside.Options{Prefix: prefix})
		must(t, err)
		t.Cleanup(func() { cache.Close() })
		_, err = cacheaside.NewLoader(cache, fmt.Sprint("user", i), func(context.Context, int64) (string, error) {
			return "", nil
		}, &cacheaside.LoaderOptions{Filter: filter})
		if (err != nil) != (prefix == "blog") {
			t.Errorf("a loader of the cache %s: %v", prefix, err)
		}
	}
}

// TestFilterOfAnotherTable: two applications with all defaults, whose tables are in different
// schemas of one database. Maintain of the second finds out at its first check.
func TestFilterOfAnotherTable(t *testing.T) {
	_, rdb := testenv.Mini(t)
	db := testenv.SharedPostgres(t).DB(t)
	var filters []*bloom.Redis
	var sources []bloom.Source
	for from := range 2 {
		schema := []string{"shop", "blog"}[from]
		_, err := db.ExecContext(t.Context(),
			"CREATE SCHEMA "+schema+"; CREATE TABLE "+schema+".users (id BIGINT PRIMARY KEY)")
		must(t, err)
		_, err = db.ExecContext(t.Context(), "INSERT INTO "+schema+".users SELECT generate_series("+
			strconv.Itoa(300*from)+", "+strconv.Itoa(300*from+299)+")")
		must(t, err)
		filters = append(filters, newFilter(t, rdb, "users", 1000))
		sources = append(sources, bloom.Table[int64](db, schema+".users", "id"))
	}
	_, err := filters[0].Rebuild(t.Context(), sources[0], atOnce)
	must(t, err)
	failed := make(chan error, 16)
	go func() {
		_ = filters[1].Maintain(t.Context(), sources[1],
			&bloom.MaintainOptions{Rebuild: atOnce, Failed: func(err error) { failed <- err }})
	}()
	if err := <-failed; !errors.Is(err, bloom.ErrForeign) {
		t.Errorf("Maintain of the second application: %v", err)
	}
	if maybe, err := filters[1].MightContain(t.Context(), "300"); !maybe || !errors.Is(err, bloom.ErrForeign) {
		t.Errorf("a row of the second application: %v, %v", maybe, err)
	}
	if _, err := filters[1].Rebuild(t.Context(), sources[1], atOnce); !errors.Is(err, bloom.ErrForeign) {
		t.Errorf("Rebuild of the second application: %v", err)
	}
	if _, err := filters[0].Rebuild(t.Context(), sources[0], atOnce); err != nil {
		t.Errorf("Rebuild of the first application: %v", err)
	}
	wanted := *atOnce
	wanted.AllowForeign = true // the table was renamed
	if _, err := filters[1].Rebuild(t.Context(), sources[1], &wanted); err != nil {
		t.Errorf("Rebuild with AllowForeign: %v", err)
	}
	if maybe, err := filters[0].MightContain(t.Context(), "1"); !maybe || !errors.Is(err, bloom.ErrForeign) {
		t.Errorf("a row of the first application: %v, %v", maybe, err)
	}
}
