package consistency

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// removedFrom is a Queue that says what it is to remove.
type removedFrom struct {
	Queue
	mu      sync.Mutex
	batches [][]Item // of Done
	again   []Item   // of Later
	takes   time.Duration
	err     error
}

func (r *removedFrom) answer(ctx context.Context) error {
	r.mu.Lock()
	takes := r.takes
	r.mu.Unlock()
	if retry.Sleep(ctx, takes) != nil {
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *removedFrom) Done(ctx context.Context, items ...Item) error {
	r.mu.Lock()
	r.batches = append(r.batches, slices.Clone(items))
	r.mu.Unlock()
	return r.answer(ctx)
}

func (r *removedFrom) Later(ctx context.Context, items ...Item) error {
	r.mu.Lock()
	r.again = append(r.again, items...)
	r.mu.Unlock()
	return r.answer(ctx)
}

func (r *removedFrom) sizes() (sizes []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.batches {
		sizes = append(sizes, len(b))
	}
	slices.Sort(sizes) // two at a time have no order
	return sizes
}

func TestRemover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &removedFrom{takes: time.Millisecond}
		r := newRemover(q)
		is := func(removed, left int64, sizes ...int) {
			t.Helper()
			if r.removed.Load() != removed || r.abandoned.Load() != left || !slices.Equal(q.sizes(), sizes) {
				t.Fatalf("%d removed, %d left, by %v; want %d, %d, %v", r.removed.Load(), r.abandoned.Load(), q.sizes(),
					removed, left, sizes)
			}
			q.mu.Lock()
			q.batches = nil
			q.mu.Unlock()
		}
		// What comes within the time goes together.
		r.add(Item{ID: "1"})
		time.Sleep(removeAfter / 2)
		r.add(Item{ID: "2"}, Item{ID: "3"})
		time.Sleep(removeAfter/2 - 1)
		is(0, 0)
		time.Sleep(q.takes + 1)
		synctest.Wait()
		is(3, 0, 3)
		// A batch is bounded, and the next one does not wait.
		for i := range removeBatch + 7 {
			r.add(Item{ID: strconv.Itoa(i)})
		}
		time.Sleep(removeAfter + 2*q.takes)
		synctest.Wait()
		is(3+removeBatch+7, 0, 7, removeBatch)
		// What is to be done again is put back.
		r.add(Item{ID: "again", Again: time.Second, After: time.Hour, Reload: true}, Item{ID: "once"})
		time.Sleep(removeAfter + 2*q.takes)
		synctest.Wait()
		is(5+removeBatch+7, 0, 1)
		if len(q.again) != 1 || q.again[0] != (Item{ID: "again", After: time.Second, Reload: true}) {
			t.Fatalf("%+v", q.again)
		}
		// close does the rest.
		r.add(Item{ID: "last"})
		r.close(t.Context())
		is(6+removeBatch+7, 0, 1)
	})
}

// TestRemoverLargeWrites: the calls of the queue are bounded for writes of any size, and only rows
// beyond the capacity are left.
func TestRemoverLargeWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &removedFrom{takes: time.Millisecond}
		r := newRemover(q)
		r.add(make([]Item, 100)...)
		r.add(make([]Item, 3300)...)
		time.Sleep(time.Second)
		synctest.Wait()
		r.add(make([]Item, removerCapacity-1)...)
		r.add(make([]Item, 3)...)
		r.add(Item{})
		r.close(t.Context())
		if sizes := q.sizes(); len(sizes) == 0 || slices.Max(sizes) > removeBatch {
			t.Errorf("removed by %v", sizes)
		}
		if r.removed.Load() != 3400+removerCapacity || r.abandoned.Load() != 3 {
			t.Errorf("%d removed, %d left", r.removed.Load(), r.abandoned.Load())
		}
	})
}

// TestRemoverOutage: while the queue refuses, memory and the path of the writes stay as they are;
// what is not removed is left, and counted.
func TestRemoverOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &removedFrom{takes: time.Hour, err: errors.New("refused")}
		r := newRemover(q)
		const all = 5 * removerCapacity
		for range all {
			began := time.Now()
			r.add(Item{ID: "a"})
			if time.Since(began) != 0 {
				t.Fatal("waited")
			}
		}
		if n := r.scheduled.Load(); n > removerCapacity || n < removerCapacity-removeConcurrency {
			t.Errorf("%d items in memory", n)
		}
		time.Sleep(time.Minute) // it hangs
		q.mu.Lock()
		q.takes = 0
		q.mu.Unlock()
		time.Sleep(time.Minute) // it refuses
		synctest.Wait()
		if r.abandoned.Load() != all || r.removed.Load() != 0 {
			t.Errorf("%d left, %d removed, of %d", r.abandoned.Load(), r.removed.Load(), all)
		}
		// One failure is tried again.
		q.mu.Lock()
		q.batches = nil
		q.mu.Unlock()
		r.add(Item{ID: "b"})
		time.Sleep(removeAfter + removeRetryDelay/2)
		q.mu.Lock()
		q.err = nil
		q.mu.Unlock()
		time.Sleep(removeRetryDelay)
		synctest.Wait()
		if r.removed.Load() != 1 || !slices.Equal(q.sizes(), []int{1, 1}) {
			t.Errorf("%d removed, by %v", r.removed.Load(), q.sizes())
		}
		// A close that may not wait does not.
		q.mu.Lock()
		q.takes = time.Hour
		q.mu.Unlock()
		r.add(Item{ID: "c"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		r.close(ctx)
		if took := time.Since(began); took > time.Second || r.abandoned.Load() != all+1 {
			t.Errorf("closed after %v, %d left", took, r.abandoned.Load())
		}
	})
}

// TestRemoverRemovesRows of an outbox, from many goroutines.
func TestRemoverRemovesRows(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		box, err := NewTestOutbox(db, "", testSpace)
		if err == nil {
			err = box.CreateTable(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		const writers, each = 8, 20
		r := newRemover(box)
		var all sync.WaitGroup
		for range writers {
			all.Go(func() {
				for i := range each {
					item := Item{ID: NewID(), Key: cacheaside.Key{Loader: "user", Text: "a"}}
					if i == 0 {
						item.Again = time.Hour
					}
					if err := box.Put(t.Context(), item); err != nil {
						t.Error(err)
						return
					}
					r.add(item)
				}
			})
		}
		all.Wait()
		r.close(t.Context())
		if d, err := box.Depth(t.Context()); d.Items != writers || d.Due != 0 || err != nil {
			t.Errorf("%+v, %v: want %d items that are to be done again", d, err, writers)
		}
		if r.removed.Load() != writers*each || r.abandoned.Load() != 0 {
			t.Errorf("%d removed, %d left", r.removed.Load(), r.abandoned.Load())
		}
	})
}
