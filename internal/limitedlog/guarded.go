package limitedlog

import (
	"context"
	"fmt"
	"log/slog"
)

// Guarded returns a logger that writes to the handler of to. A panic of that handler, which is the
// user's, loses the record, and ends nothing.
func Guarded(to *slog.Logger) *slog.Logger { return slog.New(guarded{to.Handler()}) }

type guarded struct{ to slog.Handler }

func (g guarded) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer func() { _ = recover() }()
	return g.to.Enabled(ctx, level)
}

func (g guarded) Handle(ctx context.Context, r slog.Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked with a %T", p)
		}
	}()
	return g.to.Handle(ctx, r)
}

func (g guarded) WithAttrs(attrs []slog.Attr) (h slog.Handler) {
	h = g // where it panics
	defer func() { _ = recover() }()
	return guarded{g.to.WithAttrs(attrs)}
}

func (g guarded) WithGroup(name string) (h slog.Handler) {
	h = g
	defer func() { _ = recover() }()
	return guarded{g.to.WithGroup(name)}
}
