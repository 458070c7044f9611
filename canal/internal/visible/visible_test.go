package visible

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// fake is a server of which transactions below upTo are visible.
type fake struct {
	upTo, queries atomic.Int64
	known         int
}

func (f *fake) Visible(parts []int) int {
	n := 0
	for n < len(parts) && parts[n] < f.known {
		n++
	}
	return n
}

func (f *fake) Query(_ context.Context, parts []int) (int, error) {
	f.queries.Add(1)
	f.known = int(f.upTo.Load())
	return f.Visible(parts), nil
}

func (f *fake) Batch(part int) event.Batch {
	return event.Batch{Position: event.Position(rune('a' + part)), Bytes: 1 << 20}
}

// start delivers the parts of in until the test ends.
func start(t *testing.T, f *fake) (in chan int, out chan event.Batch, ended chan error) {
	in, out, ended = make(chan int), make(chan event.Batch), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { ended <- Deliver(ctx, f, "a replica is slow", in, out) }()
	return in, out, ended
}

// Parts are delivered in their order when they are visible, and no earlier.
func TestDeliver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		in, out, _ := start(t, f)
		for i := range 3 {
			in <- i
		}
		early := func() bool {
			select {
			case <-out:
				return true
			case <-time.After(time.Second):
				return false
			}
		}
		if early() {
			t.Error("a part was delivered that is not visible")
		}
		f.upTo.Store(2)
		for _, want := range []event.Position{"a", "b"} {
			if b := <-out; b.Position != want {
				t.Errorf("%q, want %q", b.Position, want)
			}
		}
		if early() {
			t.Error("the third part was delivered with the others")
		}
		if n := f.queries.Load(); n > 2*int64(time.Second/askEvery)+2 {
			t.Errorf("%d queries", n)
		}
	})
}

// What is held back has a limit: the log is then read no further.
func TestHeldBackIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, _, _ := start(t, &fake{})
		held := 0
		for end := time.After(time.Second); ; held++ {
			select {
			case in <- held:
				continue
			case <-end:
			}
			break
		}
		if held != maxHeldBytes>>20 {
			t.Errorf("%d MiB are held back", held)
		}
	})
}

// A transaction that stays invisible is an error that says why.
func TestInvisibleForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, _, ended := start(t, &fake{})
		began := time.Now()
		in <- 1
		err := <-ended
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "a replica is slow") ||
			took < maxInvisible || took > maxInvisible+time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}
