package limitedlog

import (
	"context"
	"log/slog"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// angry panics in all that it is asked.
type angry struct{}

func (angry) Enabled(context.Context, slog.Level) bool  { panic("enabled") }
func (angry) Handle(context.Context, slog.Record) error { panic("handle") }
func (angry) WithAttrs([]slog.Attr) slog.Handler        { panic("attributes") }
func (angry) WithGroup(string) slog.Handler             { panic("group") }

// TestGuarded: records reach the handler as they are, and a handler that panics ends nothing.
func TestGuarded(t *testing.T) {
	var kept testenv.Log
	l := Guarded(kept.Logger())
	l.With("a", 1).WithGroup("g").Warn("it rains", "b", 2)
	if got := kept.Take(); len(got) != 1 || got[0] != `level=WARN msg="it rains" a=1 g.b=2` {
		t.Errorf("%q", got)
	}
	l.Debug("nobody wants to know")
	if got := kept.Take(); len(got) != 0 {
		t.Errorf("%q", got)
	}
	Guarded(slog.New(angry{})).With("a", 1).WithGroup("g").Warn("it rains")
	times := 0
	h := GuardedFunc(slog.New(angry{}), func() { times++ }).Handler()
	_ = h.WithAttrs(nil)
	_ = h.WithGroup("g")
	_ = h.Enabled(t.Context(), slog.LevelInfo)
	if err := h.Handle(t.Context(), slog.Record{}); err == nil || err.Error() != "the handler panicked with a string" {
		t.Error(err)
	}
	if times != 4 {
		t.Errorf("%d panics were counted", times)
	}
}
