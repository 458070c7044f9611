package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// panicLogged is an Observer that panics, at the beginning or at the end.
type panicLogged struct{ begin bool }

func (f panicLogged) Begin(ctx context.Context, _, _ string, _ int) (context.Context, func(error)) {
	if f.begin {
		panic("secret")
	}
	return ctx, func(error) { panic("secret") }
}

// A holder's context ends at the loss of its lock, and the next holder gets it, even if the
// Observer panics.
func TestObserverPanics(t *testing.T) {
	log := &testenv.Log{}
	for _, begin := range []bool{true, false} {
		l, err := lock.NewLocal(&lock.Options{Observer: panicLogged{begin}, Logger: log.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		held, err := l.Acquire(t.Context(), "a", &lock.AcquireOptions{TTL: 100 * time.Millisecond, Fixed: true})
		if err != nil {
			t.Fatal(err)
		}
		testenv.Receive(t, "the loss", held.Context().Done())
		if err := context.Cause(held.Context()); !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
		held, err = l.Acquire(t.Context(), "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		lines := log.Take()
		want := `level=WARN msg="cacheaside/lock: the Observer has panicked; later panics are not logged" prefix=lock: error="the Observer panicked with a string" panic=secret stack="goroutine `
		if len(lines) != 1 || !strings.HasPrefix(lines[0], want) || !strings.Contains(lines[0], "panicLogged.Begin") {
			t.Errorf("logged %q, want %s", lines, want)
		}
	}
}
