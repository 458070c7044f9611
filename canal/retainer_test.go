package canal

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// retainer is a Source whose server keeps its log.
type retainer struct {
	*told
	mu    sync.Mutex
	saved []event.Position
}

func (r *retainer) Saved(p event.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saved = append(r.saved, p)
}

func (r *retainer) Retained() int64 { return 7 }

func (r *retainer) all() []event.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.saved)
}

// retaining starts a Consumer of a retainer, with a Checkpoint or none.
func (w *world) retaining(c Checkpoint) *retainer {
	w.Helper()
	r := &retainer{told: w.source}
	var err error
	w.Consumer, err = NewConsumer(w.cache, r, c, w.bindings, &w.options)
	w.check(err)
	w.begin()
	return r
}

// A server keeps its log until the position is saved: what was only processed is needed after a
// kill.
func TestLogIsKeptUntilSaved(t *testing.T) {
	in(t, func(x *world) {
		r := x.retaining(x.checkpoint)
		x.checkpoint.mu.Lock()
		x.checkpoint.fail = errors.New("the disk is full")
		x.checkpoint.mu.Unlock()
		x.tell("1", insert(row(1, "a@b")))
		time.Sleep(10 * time.Second)
		if s := x.Stats(); s.Position != "1" || s.Retained != 7 {
			t.Errorf("%+v", s)
		}
		if saved := r.all(); len(saved) > 0 {
			t.Errorf("%q", saved)
		}
		x.checkpoint.mu.Lock()
		x.checkpoint.fail = nil
		x.checkpoint.mu.Unlock()
		time.Sleep(10 * time.Second)
		if saved := r.all(); !slices.Equal(saved, []event.Position{"1"}) {
			t.Errorf("%q", saved)
		}
	})
}

// Without a Checkpoint, what is processed is not needed any more.
func TestLogIsKeptUntilProcessed(t *testing.T) {
	in(t, func(x *world) {
		r := x.retaining(nil)
		x.tell("1", insert(row(1, "a@b")))
		if saved := r.all(); !slices.Equal(saved, []event.Position{"0", "1"}) {
			t.Errorf("%q", saved)
		}
	})
}
