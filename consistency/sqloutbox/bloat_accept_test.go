//go:build accept

package sqloutbox

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var bloatFor = flag.Duration("bloat.for", 10*time.Minute, "of TestPostgresBloat: how long the transaction is open")

// TestPostgresBloat: while a transaction is open for long, the 99th percentile of writes does not
// grow. Each write puts an item in its transaction, and removes it; a relay claims all the time.
func TestPostgresBloat(t *testing.T) {
	o := outboxOnPostgres(t)
	o.exec(o.db, "CREATE TABLE item (id BIGINT PRIMARY KEY, v VARCHAR(100))")
	var told testenv.Log
	relay := o.outbox(o.db)
	o.relayed(relay, &told)
	open := o.begin(o.db)
	o.exec(open, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT COUNT(*) FROM cacheaside_outbox")
	const every = 2 * time.Millisecond
	var first, last []time.Duration
	part := min(time.Minute, *bloatFor/3)
	began := time.Now()
	for n := 0; time.Since(began) < *bloatFor; n++ {
		at := time.Now()
		tx := o.begin(o.db)
		o.exec(tx, "INSERT INTO item VALUES ($1, 'new')", n)
		item := textItems(1)[0]
		item.ID, item.After = consistency.NewID(), 2*time.Second
		o.check(o.PutIn(o.ctx(), tx, item))
		o.check(tx.Commit())
		switch took := time.Since(at); {
		case at.Sub(began) < part:
			first = append(first, took)
		case *bloatFor-at.Sub(began) < part:
			last = append(last, took)
		}
		o.check(o.Done(o.ctx(), item))
		time.Sleep(time.Until(at.Add(every)))
	}
	nodes, pages := o.claimPlan(relay.floor.get())
	_, all := o.claimPlan(noFloor)
	p99 := func(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)*99/100] }
	a, b := p99(first), p99(last)
	t.Logf("%v, %d writes at first and %d at last: p50 %v and %v, p99 %v and %v (%.2f); a claim reads %d pages, %d "+
		"without the floor: %s",
		*bloatFor, len(first), len(last), first[len(first)/2], last[len(last)/2], a, b, float64(b)/float64(a), pages,
		all, nodes)
	if float64(b) > 1.5*float64(a) {
		t.Errorf("the p99 of writes grows from %v to %v", a, b)
	}
}
