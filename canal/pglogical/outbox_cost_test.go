//go:build accept

package pglogical

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestOutboxCost: what an outbox in a table and one in the log add to a transaction, with
// everything that follows: removing the row, and a Consumer. Round by round, in one run.
func TestOutboxCost(t *testing.T) {
	rounds, each := 3, 20
	if testenv.Accepting {
		rounds, each = 300, 10
	}
	o := outboxOn(own(t, "fsync=on", "max_wal_size=4GB"))
	o.consume()
	o.cache(1)
	ctx, n := t.Context(), int64(0)
	table, err := sqloutbox.New(o.writer.DB, sqloutbox.Postgres, nil)
	o.Check(err)
	o.Check(table.CreateTable(ctx))
	inTable, err := consistency.NewWriter(o.writer.DB, o.writer.Cache, &consistency.Options{Queue: table})
	o.Check(err)
	defer inTable.Close()
	bare := func() error {
		n++
		tx, err := o.writer.DB.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		return errors.Join(set(1, n)(ctx, tx), tx.Commit())
	}
	update := func(w *consistency.Writer) func() error {
		return func() error {
			n++
			return w.Update(ctx, set(1, n), o.key(1))
		}
	}
	ways := []way{
		{name: "the bare transaction", do: bare},
		{name: "Inline", do: update(inTable.At(consistency.Inline))},
		{name: "Outbox in a table", do: update(inTable), cleanUp: 250 * time.Millisecond},
		{name: "Outbox in the log", do: update(o.At(consistency.Outbox))},
		{name: "Async in a table", do: update(inTable.At(consistency.Async))},
		{name: "Async in the log", do: update(o.At(consistency.Async))},
	}
	for _, consumes := range []bool{true, false} { // without, it is on another machine
		if !consumes {
			o.end()
		}
		t.Logf("a Consumer runs: %v", consumes)
		for i := range ways {
			ways[i].took, ways[i].log = nil, 0
		}
		for range rounds {
			for i := range ways {
				o.measure(&ways[i], each)
			}
		}
		for _, w := range ways {
			var ratios []float64
			for r, took := range w.took {
				ratios = append(ratios, float64(took)/float64(ways[0].took[r]))
			}
			slices.Sort(ratios)
			slices.Sort(w.took)
			t.Logf("%s: %.2f times the bare transaction, %v; %d bytes of log", w.name, ratios[rounds/2],
				w.took[rounds/2], w.log/int64(rounds*each))
		}
	}
	t.Logf("the table and its indexes: %s bytes, %s dead rows",
		o.Ask("SELECT pg_total_relation_size('cacheaside_outbox')"),
		o.Ask("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'cacheaside_outbox'"))
}

// way is one way to write.
type way struct {
	name    string
	do      func() error
	cleanUp time.Duration // until its rows are removed
	took    []time.Duration
	log     int64 // bytes
}

// measure writes a number of times.
func (o *outboxWorld) measure(w *way, times int) {
	logEnd := func() int64 {
		end, err := parseLSN(o.Ask("SELECT pg_current_wal_insert_lsn()"))
		o.Check(err)
		return int64(end)
	}
	from, began := logEnd(), time.Now()
	for range times {
		o.Check(w.do())
	}
	w.took = append(w.took, time.Since(began)/time.Duration(times))
	time.Sleep(w.cleanUp)
	w.log += logEnd() - from
}
