package bloom

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestFilterUsesItsLogger: a filter logs to Options.Logger, and nothing to the default logger.
func TestFilterUsesItsLogger(t *testing.T) {
	other := logged(t)
	var log testenv.Log
	_, rdb := testenv.Mini(t)
	f, err := NewRedis(rdb, "users", 1000, 0.01, &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	defer f.Close()
	must(t, errorOf(f.Rebuild(t.Context(), Keys("a"), none)))
	must(t, f.Hidden(t.Context(), "row"))
	if !strings.Contains(log.String(), "refused a key whose row exists") {
		t.Errorf("after a report: %q", log.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	broken := func(context.Context, string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("", errors.New("the table is gone")) }
	}
	go func() { ended <- f.Maintain(ctx, broken, &MaintainOptions{Rebuild: none}) }()
	testenv.Eventually(t, "a failure of Maintain",
		func() bool { return strings.Contains(log.String(), "maintaining a filter failed") })
	cancel()
	<-ended
	if other() != "" {
		t.Errorf("the default logger: %q", other())
	}
}
