package lent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

type key struct{}

func TestValues(t *testing.T) {
	caller, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "own"), time.Hour)
	defer cancel()
	c := Values(caller)
	if _, ok := c.Deadline(); ok || c.Done() != nil || c.Err() != nil || c.Value(key{}) != "own" {
		t.Error("it does not have the values only")
	}
	cancel()
	if c.Err() != nil || c.Value(key{}) != "own" {
		t.Error("the end of the caller's context is its own")
	}
	c.End()
	c.End()
	if c.Value(key{}) != nil || c.Err() != nil {
		t.Error("it has values after End")
	}
	(*Context)(nil).End()
}

func TestWhole(t *testing.T) {
	caller, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "own"), time.Hour)
	defer cancel()
	ctx, loan := Whole(caller)
	deadline, _ := caller.Deadline()
	if got, ok := ctx.Deadline(); !ok || got != deadline || ctx.Done() != caller.Done() || ctx.Err() != nil ||
		ctx.Value(key{}) != "own" {
		t.Error("it is not the caller's context")
	}
	made, done := context.WithCancel(ctx)
	defer done()
	if again, none := Whole(made); again != made || none != nil {
		t.Error("it was lent twice")
	}
	loan.End()
	if ctx.Value(key{}) != nil || ctx.Err() != nil {
		t.Error("it has values after End")
	}
	cancel()
	<-made.Done()
	if ctx.Err() != context.Canceled || made.Err() != context.Canceled {
		t.Error(ctx.Err(), made.Err())
	}
}

func TestWholeThatHasEnded(t *testing.T) {
	caller, cancel := context.WithTimeout(t.Context(), -time.Hour)
	defer cancel()
	ctx, loan := Whole(caller)
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error(ctx.Err())
	}
	loan.End()
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("after End:", ctx.Err())
	}
}

// hanging is a context whose Value takes a while, or panics.
type hanging struct {
	context.Context
	takes time.Duration
}

func (h hanging) Value(any) any {
	if h.takes == 0 {
		panic("Value")
	}
	time.Sleep(h.takes)
	return "late"
}

// End waits for a lookup that is under way, but not for long; what the lookup finds is not used.
func TestEndWaitsForLookups(t *testing.T) {
	for takes, waits := range map[time.Duration]time.Duration{time.Millisecond: time.Millisecond, time.Hour: patience} {
		synctest.Test(t, func(t *testing.T) {
			c := Values(hanging{t.Context(), takes})
			found := make(chan any, 1)
			go func() { found <- c.Value(key{}) }()
			synctest.Wait()
			began := time.Now()
			c.End()
			if took := time.Since(began); took != waits {
				t.Errorf("End took %v, want %v", took, waits)
			}
			if got := <-found; got != nil {
				t.Error(got)
			}
		})
	}
}

func TestLookupPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Values(hanging{t.Context(), 0})
		func() {
			defer func() { recover() }()
			c.Value(key{})
		}()
		began := time.Now()
		c.End()
		if took := time.Since(began); took > 0 {
			t.Error("End waits for a lookup that has panicked:", took)
		}
	})
}
