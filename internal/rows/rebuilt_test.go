package rows

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/source"
)

// TestReturnedIsBounded: a loader remembers a bounded number of keys for its filter, for an hour,
// and no key that was found to have no row.
func TestReturnedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recentKeys{byText: make(map[string]recentKey)}
		row := source.Row{Value: "row"}
		note := func(key int, row source.Row) {
			row.Began = time.Now()
			r.note(strconv.Itoa(key), nil, row)
		}
		keys := func() int { return len(r.between(time.Now().Add(-returnedFor), time.Time{})) }
		for key, row := range []source.Row{row, {Null: true}} {
			note(key, row)
		}
		if n := keys(); n != 1 {
			t.Errorf("%d keys of one row", n)
		}
		time.Sleep(returnedFor - time.Second)
		for i := range 3 * maxReturned {
			note(i, row)
			if _, ok := r.byText[strconv.Itoa(i)]; !ok || len(r.byText) > maxReturned {
				t.Fatalf("%d keys, with the last: %v", len(r.byText), ok)
			}
		}
		note(3*maxReturned-1, source.Row{Null: true})
		time.Sleep(2 * time.Second)
		if n := keys(); n < maxReturned-1 {
			t.Errorf("%d keys of a moment ago", n)
		}
		if time.Sleep(returnedFor); keys() != 0 || len(r.byText) != 0 {
			t.Errorf("%d keys after an hour", len(r.byText))
		}
		(&Core{}).noteReturned([]*fetch.Round{{}}, []source.Row{row}) // no filter asks
	})
}
