package promises

import (
	"context"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// distrustedFilter refuses row 1, which exists. For other keys it has no immediate result; asked is
// then called.
type distrustedFilter struct {
	cacheaside.Filter
	asked func()
}

func (d *distrustedFilter) MightContainNow(key string) (may, known bool) {
	if key != "1" {
		d.asked()
		return false, false
	}
	return false, true
}

func (d *distrustedFilter) MightContain(_ context.Context, key string) (bool, error) {
	return key != "1", nil
}

func (d *distrustedFilter) NotFound(int) {}

// TestReadCompletesWhenFilterBecomesSuspect: a read completes even if the filter is found to hide
// rows while the read's first lookup is in progress.
func TestReadCompletesWhenFilterBecomesSuspect(t *testing.T) {
	_, b := embedded(t)
	f := &distrustedFilter{asked: func() {}}
	p := start(t, b, newTable(map[int]string{1: "one", 2: "two"}), steady,
		&cacheaside.LoaderOptions{Filter: f, AuditEvery: cacheaside.MinTTL})
	f.asked = func() {
		testenv.Eventually(t, "an audit that finds the hidden row", func() bool {
			row, err := p.Get(t.Context(), 1)
			return row == "one" && err == nil && p.Stats().FilterHidden > 0
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
	defer cancel()
	began := time.Now()
	if row, err := p.Get(ctx, 2); row != "two" || err != nil {
		t.Errorf("%q, %v after %v", row, err, time.Since(began))
	}
}
