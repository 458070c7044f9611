package pglogical

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
)

// countingContext counts the contexts that depend on it and have not ended.
type countingContext struct {
	context.Context
	open atomic.Int64
}

// AfterFunc is called by package context for each context that is derived from c.
func (c *countingContext) AfterFunc(func()) (stop func() bool) {
	c.open.Add(1)
	return func() bool { c.open.Add(-1); return true }
}

func (c *countingContext) Done() <-chan struct{} { return make(chan struct{}) }

// A Run that fails leaves nothing behind in the context of its caller, which tries again for ever.
func TestFailedRunEndsItsContext(t *testing.T) {
	s, err := New(Options{ConnString: "postgres://x@127.0.0.1:1/x"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := &countingContext{Context: context.Background()}
	if err := s.Run(ctx, event.Need{}, nil); err == nil {
		t.Fatal("no error")
	}
	if n := ctx.open.Load(); n != 0 {
		t.Errorf("%d contexts have not ended", n)
	}
}
