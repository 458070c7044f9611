//go:build accept

package consistency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestCostOfAWrite: what each level adds to a transaction, in one run, round by round.
func TestCostOfAWrite(t *testing.T) { testenv.EachServer(t, costOfAWrite) }

func costOfAWrite(t *testing.T, e testenv.Engine) {
	rounds, each := 2, 5
	if testenv.Accepting {
		rounds, each = 300, 10
	}
	for _, durability := range durabilities(e) {
		t.Run(durability, func(t *testing.T) {
			x := start(t, setup{sql: testenv.DurableWith(t, e, durability), relay: true, direct: true})
			x.grace = grace
			rdb := x.server.Client(t)
			ctx, n := t.Context(), 0
			next := func() string { n++; return fmt.Sprint(n) }
			ways := []struct {
				name string
				do   func() error
			}{
				{"a round trip to Redis", func() error { return rdb.Del(ctx, "none").Err() }},
				{"the bare transaction", func() error { return bare(ctx, x.writes, set(1, next())) }},
				{"and two round trips", func() error {
					return errors.Join(bare(ctx, x.writes, set(1, next())), rdb.Del(ctx, "none").Err(),
						rdb.Del(ctx, "none").Err())
				}},
				{"Inline", func() error { return x.At(Inline).Update(ctx, set(1, next()), x.rows.Key(1)) }},
				{"Outbox", func() error { return x.At(Outbox).Update(ctx, set(1, next()), x.rows.Key(1)) }},
				{"Async", func() error { return x.At(Async).Update(ctx, set(1, next()), x.rows.Key(1)) }},
				{"Strict", func() error { return x.At(Strict).Update(ctx, set(1, next()), x.rows.Key(1)) }},
				{"WriteThrough", func() error { return WriteThrough(ctx, x.Writer, x.rows, 1, through(1, next())) }},
			}
			took := make([][]time.Duration, len(ways))
			for range rounds {
				for i, way := range ways {
					began := time.Now()
					for range each {
						x.check(way.do())
					}
					took[i] = append(took[i], time.Since(began)/time.Duration(each))
				}
			}
			times := func(of, as int) float64 {
				// the median of what the rounds say, each by itself, for the machine is not the
				// same from one to the next
				var all []float64
				for r := range rounds {
					all = append(all, float64(took[of][r])/float64(took[as][r]))
				}
				slices.Sort(all)
				return all[len(all)/2]
			}
			t.Logf("%s, median of %d rounds of %d:", durability, rounds, each)
			for i, way := range ways {
				all := slices.Sorted(slices.Values(took[i]))
				t.Logf("%-22s %v (%.2fx)", way.name, all[len(all)/2].Round(time.Microsecond), times(i, 1))
			}
			if !testenv.Accepting || !waitsForDisk(durability) {
				return
			}
			if inline := times(3, 2); inline > 1.05 {
				// trips after a transaction, when everybody has gone to sleep, are slower than one
				// after the other
				t.Errorf("Inline takes %.2f times as long as a transaction and two trips", inline)
			}
			if outbox := times(4, 1); outbox > 1.6 {
				t.Errorf("Outbox takes %.2f times as long as a bare transaction", outbox)
			}
		})
	}
}

// bare is a write without a Writer.
func bare(ctx context.Context, db *sqlx.DB, write func(context.Context, *sqlx.Tx) error) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	if err := write(ctx, tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// TestOutboxStaysSmall: rows leave the outbox as fast as writes put them there.
func TestOutboxStaysSmall(t *testing.T) { testenv.EachServer(t, outboxStaysSmall) }

func outboxStaysSmall(t *testing.T, e testenv.Engine) {
	const writers = 32
	length, rate := 500*time.Millisecond, 200
	if testenv.Accepting {
		length, rate = 20*time.Second, 2000
	}
	x := start(t, setup{sql: testenv.Durable(t, e), relay: true, direct: true})
	x.grace = grace
	x.writes.SetMaxIdleConns(2 * writers)
	x.exec("INSERT INTO item SELECT seq, 'old' FROM " + testenv.Numbers(3, 10000))
	// paced runs the writers for the same time and returns how many writes a second they make.
	paced := func(write func(id int) error) float64 {
		var writes atomic.Int64
		ticks := make(chan int)
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for id := range ticks {
					if err := write(id); err != nil {
						t.Error(err)
					}
					writes.Add(1)
				}
			})
		}
		began := time.Now()
		for n := 1; time.Since(began) < length; n++ {
			time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
			ticks <- n%9000 + 1
		}
		close(ticks)
		wg.Wait()
		return float64(writes.Load()) / time.Since(began).Seconds()
	}
	alone := paced(func(id int) error { return bare(t.Context(), x.writes, set(id, fmt.Sprint(time.Now()))) })
	most := 0
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond): // to count costs the database something, too
				most = max(most, x.intents())
			}
		}
	}()
	reached := paced(func(id int) error {
		return x.At(Outbox).Update(t.Context(), set(id, fmt.Sprint(time.Now())), x.rows.Key(id))
	})
	close(over)
	<-done
	t.Logf("%.0f writes/s of %d for %v, bare transactions %.0f/s: at most %d rows in the outbox; %+v", reached, rate,
		length, alone, most, x.Stats())
	if most >= 1000 {
		t.Errorf("%d rows in the outbox", most)
	}
}

// TestOutboxCost measures what PutIn adds to a transaction that changes one row: the median of the
// ratios of rounds that alternate between both kinds.
func TestOutboxCost(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, e testenv.Engine) {
		for _, durability := range durabilities(e) {
			t.Run(durability, func(t *testing.T) {
				ratio := outboxCost(t, durability, testenv.DurableWith(t, e, durability).Open(t))
				if ratio > 1.6 && testenv.Accepting && waitsForDisk(durability) {
					t.Errorf("%.2fx", ratio)
				}
			})
		}
	})
}

// outboxCost returns the ratio of the rows that are removed off the path: the greater one of a
// single writer and of several.
func outboxCost(t *testing.T, durability string, db *sqlx.DB) (ratio float64) {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	exec := func(on sqlx.ExecerContext, statement string) {
		t.Helper()
		_, err := on.ExecContext(t.Context(), statement)
		check(err)
	}
	box, err := NewTestOutbox(db, "", testSpace)
	check(err)
	check(box.CreateTable(t.Context()))
	rounds, each := 1, 16
	if testenv.Accepting {
		rounds, each = 31, 160
	}
	exec(db, "CREATE TABLE product (id INT PRIMARY KEY, price INT)")
	exec(db, "INSERT INTO product SELECT seq, 0 FROM "+testenv.Numbers(1, 1000))
	r := newRemover(box)
	defer r.close(t.Context())
	var n atomic.Int64
	transaction := func(db *sqlx.DB, in, after func(sqlx.ExecerContext, Item)) {
		i := n.Add(1)
		item := Item{ID: NewID(), Key: cacheaside.Key{Loader: "user", Text: fmt.Sprint(i)}, After: 2 * time.Second}
		tx, err := db.BeginTxx(t.Context(), nil)
		check(err)
		exec(tx, fmt.Sprintf("UPDATE product SET price = price + 1 WHERE id = %d", 1+i%1000))
		in(tx, item)
		check(tx.Commit())
		after(db, item)
	}
	nothing := func(sqlx.ExecerContext, Item) {}
	put := func(tx sqlx.ExecerContext, item Item) { check(box.PutIn(context.Background(), tx, item)) }
	kinds := []struct {
		name      string
		in, after func(sqlx.ExecerContext, Item)
	}{
		{"bare", nothing, nothing},
		{"with PutIn", put, nothing},
		{"with PutIn, removed off the path", put, func(_ sqlx.ExecerContext, item Item) { r.add(item) }},
		{"with PutIn, removed in the path", put, func(_ sqlx.ExecerContext, item Item) { check(box.Done(context.Background(), item)) }},
	}
	for _, writers := range []int{1, 8} {
		ratios, bare := make([][]float64, len(kinds)), []float64(nil)
		for range rounds {
			var base float64
			for k, kind := range kinds {
				began := time.Now()
				concurrently(writers, each, func() { transaction(db, kind.in, kind.after) })
				took := float64(time.Since(began).Microseconds()) / float64(each)
				if k == 0 {
					base = took
					bare = append(bare, took)
				}
				ratios[k] = append(ratios[k], took/base)
				exec(db, "DELETE FROM cacheaside_outbox")
			}
		}
		t.Logf("%s, %d writers: a bare transaction: %.0f µs", durability, writers, medianOf(bare))
		for k, kind := range kinds[1:] {
			t.Logf("%s, %d writers: %s: %.2fx", durability, writers, kind.name, medianOf(ratios[k+1]))
		}
		ratio = max(ratio, medianOf(ratios[2]))
	}
	return ratio
}

func concurrently(workers, each int, f func()) {
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range each / workers {
				f()
			}
		})
	}
	all.Wait()
}

func medianOf(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// durabilities returns the settings with which figures of commits are reported: commits that do not
// wait for everything to be on the disk, and commits that do.
func durabilities(e testenv.Engine) []string {
	if e == testenv.PostgreSQL {
		return []string{"synchronous_commit=off", "synchronous_commit=on"}
	}
	return []string{"sync_binlog=0", "sync_binlog=1"}
}

// waitsForDisk reports whether commits wait for the disk. Otherwise a transaction takes so little
// time that each further statement adds much to it.
func waitsForDisk(durability string) bool { return durability != "synchronous_commit=off" }
