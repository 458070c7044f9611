package rows

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/source"
)

// TestReturnedIsBounded: a loader remembers so many keys for its filter, for an hour, and none that
// has turned out to have no row.
func TestReturnedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &returned[float64]{at: make(map[float64]time.Time)}
		row := func() source.Row { return source.Row{Value: "row", Began: time.Now()} }
		none, failed := source.Row{Null: true}, source.Row{Err: errors.New("failed")}
		keys := func() int { return len(r.between(time.Now().Add(-returnedFor), time.Time{})) }
		note(r, []float64{1, 2, 3, math.NaN()}, []source.Row{row(), none, failed, row()})
		if n := keys(); n != 1 {
			t.Errorf("%d keys of one row", n)
		}
		time.Sleep(returnedFor - time.Second)
		for i := range 3 * maxReturned {
			note(r, []float64{float64(i)}, []source.Row{row()})
			if _, ok := r.at[float64(i)]; !ok || len(r.at) > maxReturned {
				t.Fatalf("%d keys, with the last: %v", len(r.at), ok)
			}
		}
		note(r, []float64{math.NaN(), 1}, []source.Row{row(), none})
		time.Sleep(2 * time.Second)
		if n := keys(); n < maxReturned-1 {
			t.Errorf("%d keys of a moment ago", n)
		}
		if time.Sleep(returnedFor); keys() != 0 || len(r.at) != 0 {
			t.Errorf("%d keys after an hour", len(r.at))
		}
		var nobody *returned[string]
		note(nobody, []string{"a"}, []source.Row{row()})
	})
}
