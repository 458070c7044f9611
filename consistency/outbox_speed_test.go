package consistency

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

// TestClaimersShare: of several relays at once none gets what another has, and together they are not slower than one.
func TestClaimersShare(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		n := 300
		switch {
		case testenv.Accepting:
			n = 50_000
		case t.server != nil:
			n = 2000
		}
		var figures []string
		var speeds []float64
		for _, relays := range []int{1, 2, 4} {
			t.check(t.Put(t.ctx(), textItems(n)...))
			var mu sync.Mutex
			seen := map[string]int{}
			var work sync.WaitGroup
			began := time.Now()
			for range relays {
				o := t.outbox(t.db)
				work.Go(func() {
					for {
						items, err := o.Claim(t.Context(), 100, claimLong)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						for _, item := range items {
							seen[item.Key.Text]++
						}
						done := len(seen) == n
						mu.Unlock()
						if err := o.Done(t.Context(), items...); err != nil {
							t.Error(err)
							return
						}
						if done {
							return
						}
					}
				})
			}
			work.Wait()
			speeds = append(speeds, float64(n)/time.Since(began).Seconds())
			figures = append(figures, fmt.Sprintf("%d: %.0f items/s", relays, speeds[len(speeds)-1]))
			for text, times := range seen {
				if times != 1 {
					t.Errorf("%s was given out %d times", text, times)
				}
			}
			t.holds(0, "done")
		}
		t.Logf("claimed and removed, 100 at once, by relays: %s", strings.Join(figures, "; "))
		if testenv.Accepting && speeds[2] < speeds[0]/3 {
			t.Error("four are far slower than one")
		}
	})
}

// TestDeepQueue: a claim reads what it claims, however much there is behind it, and Depth does not count for ever.
func TestDeepQueue(t *testing.T) {
	n := 5000
	if testenv.Accepting {
		n = 1_000_000
	}
	o := outboxOnMySQL(t)
	o.check(func() error {
		_, err := o.db.Exec(fmt.Sprintf("INSERT INTO cacheaside_outbox (id, due, created, loader, version, text, all_keys, again, reload, attempts) "+
			"SELECT UNHEX(LPAD(HEX(seq), 32, '0')), 1000000 + seq, 1000000, 'user', '1', seq, 0, 0, 0, 0 FROM seq_1_to_%d", n))
		return err
	}())
	conn, err := o.db.Connx(o.ctx())
	o.check(err)
	defer conn.Close()
	read := func() (sum int) {
		var rows []struct {
			Name  string `db:"Variable_name"`
			Value int    `db:"Value"`
		}
		o.check(conn.SelectContext(o.ctx(), &rows, "SHOW SESSION STATUS LIKE 'Handler_read%'"))
		for _, r := range rows {
			if !strings.HasSuffix(r.Name, "deleted") {
				sum += r.Value
			}
		}
		return sum
	}
	before := read()
	o.exec(conn, o.text.claim(500, newClaim(), claimLong))
	if rows := read() - before; rows > 5000 {
		t.Errorf("%d rows were read to claim 500 of %d", rows, n)
	}
	took := make([]time.Duration, 0, 20)
	for range 20 {
		began := time.Now()
		items := o.some(o.SQLOutbox, 50)
		took = append(took, time.Since(began))
		if len(items) != 50 {
			t.Fatalf("claimed %d of 50", len(items))
		}
	}
	slices.Sort(took)
	began := time.Now()
	d, err := o.Depth(o.ctx())
	o.check(err)
	if d.Items != min(n, depthAtMost) || d.Due != min(n-1500, depthAtMost) || d.Oldest < 40*365*24*time.Hour {
		t.Errorf("%+v of %d", d, n)
	}
	t.Logf("%d items: a claim of 50 took %v (median), %v (worst); Depth took %v", n, took[10], took[19], time.Since(began))
}

// TestOutboxCost measures what PutIn adds to a transaction that changes one row: the median of the ratios of rounds in which each kind takes its turn.
func TestOutboxCost(t *testing.T) {
	rounds, each := 1, 16
	if testenv.Accepting {
		rounds, each = 31, 160
	}
	o := outboxOnMySQL(t)
	defer o.db.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 0, GLOBAL sync_binlog = 0")
	o.exec(o.db, "CREATE TABLE product (id INT PRIMARY KEY, price INT)")
	o.exec(o.db, "INSERT INTO product SELECT seq, 0 FROM seq_1_to_1000")
	r := newRemover(o)
	defer r.close(t.Context())
	var n atomic.Int64
	transaction := func(db *sqlx.DB, in, after func(Execer, Item)) {
		i := n.Add(1)
		item := textItem(fmt.Sprint(i))
		item.ID, item.After = newID(), 2*time.Second
		tx, err := db.BeginTxx(t.Context(), nil)
		o.check(err)
		o.exec(tx, fmt.Sprintf("UPDATE product SET price = price + 1 WHERE id = %d", 1+i%1000))
		in(tx, item)
		o.check(tx.Commit())
		after(db, item)
	}
	nothing := func(Execer, Item) {}
	put := func(tx Execer, item Item) { o.check(o.PutIn(context.Background(), tx, item)) }
	kinds := []struct {
		name      string
		in, after func(Execer, Item)
	}{
		{"bare", nothing, nothing},
		{"with PutIn", put, nothing},
		{"with PutIn, removed off the path", put, func(_ Execer, item Item) { r.add(item) }},
		{"with PutIn, removed in the path", put, func(_ Execer, item Item) { o.check(o.Done(context.Background(), item)) }},
	}
	for _, writers := range []int{1, 8} {
		for _, binlog := range []int{0, 1} {
			o.exec(o.db, fmt.Sprintf("SET GLOBAL innodb_flush_log_at_trx_commit = 1, GLOBAL sync_binlog = %d", binlog))
			ratios, bare := make([][]float64, len(kinds)), []float64(nil)
			for range rounds {
				var base float64
				for k, kind := range kinds {
					began := time.Now()
					concurrently(writers, each, func() { transaction(o.db, kind.in, kind.after) })
					took := float64(time.Since(began).Microseconds()) / float64(each)
					if k == 0 {
						base = took
						bare = append(bare, took)
					}
					ratios[k] = append(ratios[k], took/base)
					o.exec(o.db, "DELETE FROM cacheaside_outbox")
				}
			}
			t.Logf("sync_binlog=%d, %d writers: a bare transaction: %.0f µs", binlog, writers, medianOf(bare))
			for k, kind := range kinds[1:] {
				t.Logf("sync_binlog=%d, %d writers: %s: %.2fx", binlog, writers, kind.name, medianOf(ratios[k+1]))
			}
			if ratio := medianOf(ratios[2]); ratio > 1.6 && testenv.Accepting {
				t.Errorf("%.2fx", ratio)
			}
		}
	}
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
