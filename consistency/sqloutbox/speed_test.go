package sqloutbox

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestClaimersShare: of several relays at once none gets what another has, and together they are
// not slower than one.
func TestClaimersShare(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		n, most := 120, 20
		switch {
		case testenv.Accepting:
			n, most = 50_000, 100
		case t.text.dialect != SQLite:
			n, most = 1000, 100
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
						items, err := o.Claim(t.Context(), most, claimLong)
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
		t.Logf("claimed and removed, %d at once, by relays: %s", most, strings.Join(figures, "; "))
		if testenv.Accepting && speeds[2] < speeds[0]/3 {
			t.Error("four are far slower than one")
		}
	})
}

// TestDeepQueue: a claim reads only the rows that it claims, however deep the queue is, and Depth
// stops counting at a bound.
func TestDeepQueue(t *testing.T) { testenv.OneServerUnlessAccepting(t, deepQueue) }

func deepQueue(t *testing.T, e testenv.Engine) {
	n := 5000
	if testenv.Accepting {
		n = 1_000_000
	}
	o := outboxOn(t, e)
	fill := o.deepMySQL
	if e == testenv.PostgreSQL {
		fill = o.deepPostgres
	}
	oldest := fill(n)
	took := make([]time.Duration, 0, 20)
	for range 20 {
		began := time.Now()
		items := o.some(o.Outbox, 50)
		took = append(took, time.Since(began))
		if len(items) != 50 {
			t.Fatalf("claimed %d of 50", len(items))
		}
	}
	slices.Sort(took)
	began := time.Now()
	d, err := o.Depth(o.ctx())
	o.check(err)
	if d.Items != min(n, maxDepth) || d.Due != min(n-1500, maxDepth) || d.Oldest < oldest {
		t.Errorf("%+v of %d", d, n)
	}
	t.Logf("%d items: a claim of 50 took %v (median), %v (worst); Depth took %v", n, took[10], took[19],
		time.Since(began))
}

// deepMySQL puts n rows and claims 500 of them. It returns a lower bound of the rows' age.
func (t *outboxTest) deepMySQL(n int) time.Duration {
	t.check(func() error {
		_, err := t.db.Exec("INSERT INTO cacheaside_outbox (namespace, id, due, created, loader, version, text, " +
			"all_keys, again, reload, attempts, admit) " +
			"SELECT '" + testSpace + "', UNHEX(LPAD(HEX(seq), 32, '0')), 1000000 + seq, 1000000, 'user', '1', seq, " +
			"0, 0, 0, 0, 0 FROM " + testenv.Numbers(1, n))
		return err
	}())
	conn, err := t.db.Connx(t.ctx())
	t.check(err)
	defer conn.Close()
	read := func() (sum int) {
		var rows []struct {
			Name  string `db:"Variable_name"`
			Value int    `db:"Value"`
		}
		t.check(conn.SelectContext(t.ctx(), &rows, "SHOW SESSION STATUS LIKE 'Handler_read%'"))
		for _, r := range rows {
			if !strings.HasSuffix(r.Name, "deleted") {
				sum += r.Value
			}
		}
		return sum
	}
	before := read()
	t.exec(conn, t.mine().claim(500, newClaim(), claimLong))
	if rows := read() - before; rows > 5000 {
		t.Errorf("%d rows were read to claim 500 of %d", rows, n)
	}
	return 40 * 365 * 24 * time.Hour
}

// deepPostgres is deepMySQL in PostgreSQL.
func (t *outboxTest) deepPostgres(n int) time.Duration {
	const age = 40 * 365 * 24 * time.Hour
	t.fill(n, age+time.Hour)
	nodes, pages := t.claimPlan(noFloor)
	if pages > 15*500 || !strings.Contains(nodes, "Index Scan cacheaside_outbox_due") ||
		strings.Contains(nodes, "Sort") {
		t.Errorf("%d pages were read to claim 500 of %d: %s", pages, n, nodes)
	}
	if got := t.some(t.Outbox, 500); len(got) != 500 {
		t.Fatalf("claimed %d of 500", len(got))
	}
	return age
}
