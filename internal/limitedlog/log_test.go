package limitedlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestQuiet: an event that repeats itself is logged once, and counted.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &testenv.Log{}
		l := New(kept.Logger())
		for range 1000 {
			l.Warn("it rains", "a", errors.New("broken"))
			l.Warn("it rains", "b", nil)
			l.Inform("the sun shines", "")
		}
		kept.Has(t, `level=WARN msg="cacheaside: it rains" loader=a error=broken`,
			`level=WARN msg="cacheaside: it rains" loader=b`, `level=INFO msg="cacheaside: the sun shines"`)
		time.Sleep(QuietFor)
		l.Warn("it rains", "a", errors.New("broken"))
		kept.Has(t, `level=WARN msg="cacheaside: it rains" loader=a error=broken times=1000`)
		l.Close()
		time.Sleep(QuietFor)
		l.Warn("it rains", "a", errors.New("broken"))
		kept.Has(t)
	})
}

// A logger that is slow, or panics, delays no caller.
func TestBadLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &badHandler{}
		l := New(slog.New(h))
		for i := range 2 * MaxRecords {
			l.Warn(fmt.Sprint(i), "", nil)
		}
		synctest.Wait()
		l.mu.Lock()
		waiting := len(l.records)
		l.mu.Unlock()
		if waiting > MaxRecords {
			t.Errorf("%d wait", waiting)
		}
		l.Close()
		h.panics = true
		other := New(slog.New(h))
		other.Warn("one", "", nil)
		synctest.Wait()
		other.Warn("two", "", nil)
		other.Close()
		if h.times < 2+MaxRecords {
			t.Errorf("logged %d times", h.times)
		}
	})
}

// A handler that calls runtime.Goexit loses the record that it was given, and no other.
func TestHandlerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &badHandler{leaves: true}
		l := New(slog.New(h))
		for i := range 3 {
			l.Warn(fmt.Sprint(i), "", nil)
		}
		synctest.Wait()
		l.Warn("another", "", nil)
		l.Close()
		if h.times != 4 {
			t.Errorf("%d records of 4", h.times)
		}
	})
}

type badHandler struct {
	slog.Handler
	panics bool
	leaves bool
	times  int
}

func (b *badHandler) Enabled(context.Context, slog.Level) bool { return true }
func (b *badHandler) Handle(context.Context, slog.Record) error {
	b.times++
	if b.panics {
		panic("boom")
	}
	if b.leaves {
		runtime.Goexit()
	}
	time.Sleep(time.Second)
	return nil
}
