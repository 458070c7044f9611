package mysqlbinlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Rows that another program inserts are found as soon as their changes are consumed: at once in the
// consuming process, in others when they receive the announcement. This holds even if a whitelist
// excluded the rows and many readers had asked for them.
func TestOthersRowsAreNotHidden(t *testing.T) { each(t, testOthersRowsAreNotHidden) }

func testOthersRowsAreNotHidden(x *world) {
	t := x.T
	rdb := testenv.SharedRedis(t).Client(t)
	x.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(50))",
		"INSERT INTO users SELECT seq, 'old' FROM "+testenv.Numbers(1, 1000))
	filter := func() *bloom.Redis {
		f, err := bloom.NewRedis(rdb, "users", 10_000, 0.001, &bloom.Options{Timeout: testenv.Hang})
		x.Check(err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	f, g := filter(), filter()
	replica, err := bloom.NewReplica(g)
	x.Check(err)
	rebuild := func(ctx context.Context) error {
		_, err := f.Rebuild(ctx, bloom.Table[int64](x.DB, "users", "id"),
			&bloom.RebuildOptions{Settle: -1, AllowFewer: true})
		return err
	}
	a, b := x.process(rdb, f), x.process(rdb, replica)
	gaps := 0
	rebuilt := func(ctx context.Context) error {
		err := rebuild(ctx)
		if err == nil { // what fails is tried again
			gaps++
		}
		return err
	}
	c := x.consume(a, canal.NewFileCheckpoint(t.TempDir()+"/position"), &canal.Options{OnGap: rebuilt})
	testenv.Eventually(x, "the filter is built", func() bool {
		_, err := a.users.Get(t.Context(), 5000)
		return errors.Is(err, cacheaside.ErrNotFound) && a.users.Stats().Filtered > 0
	})
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for _, p := range []*process{a, b} {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(1, 2))
			for {
				select {
				case <-stop:
					return
				default:
				}
				time.Sleep(100 * time.Microsecond)
				if _, err := p.users.Get(t.Context(), 1001+r.Int64N(5000)); err != nil &&
					!errors.Is(err, cacheaside.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	find := func(from, to int64) {
		t.Helper()
		for id := from; id <= to; id++ {
			if _, err := a.users.Get(t.Context(), id); err != nil {
				t.Fatalf("row %d is hidden where its change was consumed: %v", id, err)
			}
		}
		for id := from; id <= to; id++ {
			testenv.Eventually(x, fmt.Sprintf("row %d is found elsewhere", id),
				func() bool { _, err := b.users.Get(t.Context(), id); return err == nil })
		}
	}
	rounds := int64(testenv.AtSize(8, 200))
	for n := range rounds {
		from := 1001 + 20*n
		done := c.Stats().Changes
		x.Do("INSERT INTO users SELECT seq, 'new' FROM " + testenv.Numbers(int(from), int(from)+19))
		testenv.Eventually(x, "it is consumed", func() bool { return c.Stats().Changes >= done+20 })
		find(from, from+19)
	}
	x.Do("CREATE TABLE other LIKE users", "INSERT INTO other SELECT seq, 'of another table' FROM "+testenv.Numbers(8000,
		8100), "RENAME TABLE users TO gone, other TO users")
	testenv.Eventually(x, "the table is another", func() bool {
		v, err := a.users.Get(t.Context(), 8000)
		return err == nil && v == "of another table"
	})
	find(8000, 8100)
	close(stop)
	readers.Wait()
	if gaps != 2 {
		t.Errorf("OnGap has worked %d times", gaps)
	}
	t.Logf("%d rows, %d reads were turned away", 20*rounds+101, a.users.Stats().Filtered+b.users.Stats().Filtered)
}
