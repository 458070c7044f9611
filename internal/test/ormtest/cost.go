package ormtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
)

// A Way is one of several ways to make the same write.
type Way struct {
	Name string
	Do   func() error
}

// ByHand is Writer.Update of the price of item 1, with its three keys.
func (w *World) ByHand(ctx context.Context) Way {
	n := 0
	return Way{"Writer.Update with three keys by hand", func() error {
		return w.Writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			n++
			_, err := tx.ExecContext(ctx, tx.Rebind("UPDATE items SET price = ? WHERE id = 1"), n)
			return err
		}, w.Items.Key(1), w.Codes.Key("code0"), w.Lists.GroupKey("category:c0"))
	}}
}

// Cost logs how long a write takes in each of these ways, in runs that take turns.
func Cost(t *testing.T, ways ...Way) {
	t.Helper()
	const runs, writes = 9, 200
	took := make([][]time.Duration, len(ways))
	for range runs {
		for i, way := range ways {
			began := time.Now()
			for range writes {
				if err := way.Do(); err != nil {
					t.Fatal(err)
				}
			}
			took[i] = append(took[i], time.Since(began)/writes)
		}
	}
	for i, way := range ways {
		slices.Sort(took[i])
		t.Logf("%-38s %v a write, median of %d runs", way.Name, took[i][runs/2].Round(time.Microsecond), runs)
	}
}
