package queuetest

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/consistency"
)

// queue is a queue in memory with flaws: each field that is not nil replaces a method.
type queue struct {
	consistency.Queue
	put    func(ctx context.Context, items []consistency.Item) error
	claim  func(ctx context.Context, most int, life time.Duration) ([]consistency.Item, error)
	done   func(ctx context.Context, items []consistency.Item) error
	later  func(ctx context.Context, items []consistency.Item) error
	depth  func(ctx context.Context) (consistency.Depth, error)
	shared bool // applications share it
}

func (q *queue) Put(ctx context.Context, items ...consistency.Item) error {
	if q.put != nil {
		return q.put(ctx, items)
	}
	return q.Queue.Put(ctx, items...)
}

func (q *queue) Claim(ctx context.Context, most int, life time.Duration) ([]consistency.Item, error) {
	if q.claim != nil {
		return q.claim(ctx, most, life)
	}
	return q.Queue.Claim(ctx, most, life)
}

func (q *queue) Done(ctx context.Context, items ...consistency.Item) error {
	if q.done != nil {
		return q.done(ctx, items)
	}
	return q.Queue.Done(ctx, items...)
}

func (q *queue) Later(ctx context.Context, items ...consistency.Item) error {
	if q.later != nil {
		return q.later(ctx, items)
	}
	return q.Queue.Later(ctx, items...)
}

func (q *queue) Depth(ctx context.Context) (consistency.Depth, error) {
	if q.depth != nil {
		return q.depth(ctx)
	}
	return q.Queue.Depth(ctx)
}

// changed returns copies of items, each changed by f.
func changed(items []consistency.Item, f func(*consistency.Item)) []consistency.Item {
	items = slices.Clone(items)
	for i := range items {
		f(&items[i])
	}
	return items
}

// claimed changes the items that Claim returns.
func (q *queue) claimed(f func(*consistency.Item)) {
	q.claim = func(ctx context.Context, most int, life time.Duration) ([]consistency.Item, error) {
		items, err := q.Queue.Claim(ctx, most, life)
		return changed(items, f), err
	}
}

func unclaim(i *consistency.Item) { i.Claim = "" }

// flaws has, for each test of the suite, a flaw that it finds.
var flaws = map[string]func(q *queue){
	"Kept": func(q *queue) { q.claimed(func(i *consistency.Item) { i.Reload = false }) },
	"Admits": func(q *queue) {
		q.claimed(func(i *consistency.Item) { i.Inserting = i.Inserting && i.Attempts == 0 })
	},
	"Names": func(q *queue) { q.claimed(func(i *consistency.Item) { i.ID = "same" }) },
	"Order": func(q *queue) {
		q.claim = func(ctx context.Context, most int, life time.Duration) ([]consistency.Item, error) {
			items, err := q.Queue.Claim(ctx, most, life)
			slices.Reverse(items)
			return items, err
		}
	},
	"Max": func(q *queue) {
		q.claim = func(ctx context.Context, most int, life time.Duration) ([]consistency.Item, error) {
			return q.Queue.Claim(ctx, most+1, life)
		}
	},
	"After": func(q *queue) {
		q.put = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Put(ctx, changed(items, func(i *consistency.Item) { i.After = 0 })...)
		}
	},
	"Age": func(q *queue) { q.claimed(func(i *consistency.Item) { i.Age = 0 }) },
	"Exclusive": func(q *queue) {
		q.claim = func(ctx context.Context, most int, life time.Duration) ([]consistency.Item, error) {
			items, err := q.Queue.Claim(ctx, most, life)
			_ = q.Queue.Later(ctx, changed(items, func(i *consistency.Item) { i.After = 0 })...)
			return items, err
		}
	},
	"ClaimEnds": func(q *queue) {
		q.claim = func(ctx context.Context, most int, _ time.Duration) ([]consistency.Item, error) {
			return q.Queue.Claim(ctx, most, long)
		}
	},
	"LateDone": func(q *queue) {
		q.done = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Done(ctx, changed(items, unclaim)...)
		}
	},
	"LateLater": func(q *queue) {
		q.later = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Later(ctx, changed(items, unclaim)...)
		}
	},
	"LateAlone": func(q *queue) {
		var ends time.Time
		q.claim = func(ctx context.Context, most int, life time.Duration) ([]consistency.Item, error) {
			ends = time.Now().Add(life)
			return q.Queue.Claim(ctx, most, life)
		}
		q.done = func(ctx context.Context, items []consistency.Item) error {
			if time.Now().After(ends) {
				return nil
			}
			return q.Queue.Done(ctx, items...)
		}
	},
	"Later": func(q *queue) {
		q.later = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Later(ctx, changed(items, func(i *consistency.Item) { i.Attempts = 0 })...)
		}
	},
	"LaterKeepsClaims": func(q *queue) {
		var all []consistency.Item
		q.claim = func(ctx context.Context, most int, life time.Duration) (_ []consistency.Item, err error) {
			items, err := q.Queue.Claim(ctx, most, life)
			all = append(all, items...)
			return items, err
		}
		q.later = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Later(ctx, append(all, items...)...)
		}
	},
	"Gone": func(q *queue) {
		q.later = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Put(ctx, items...)
		}
	},
	"Repeated": func(q *queue) {
		q.put = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Put(ctx, changed(items, func(i *consistency.Item) { i.ID = "" })...)
		}
	},
	"Unclaimed": func(q *queue) {
		q.done = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Done(ctx, slices.DeleteFunc(items,
				func(i consistency.Item) bool { return i.Claim == "" })...)
		}
	},
	"Apart": func(q *queue) { q.shared = true },
	"Nothing": func(q *queue) {
		q.claim = func(context.Context, int, time.Duration) ([]consistency.Item, error) {
			return []consistency.Item{}, nil
		}
	},
	"Large": func(q *queue) {
		q.put = func(ctx context.Context, items []consistency.Item) error {
			return q.Queue.Put(ctx, items[:min(1000, len(items))]...)
		}
	},
	"Depth": func(q *queue) {
		q.depth = func(ctx context.Context) (consistency.Depth, error) {
			d, err := q.Queue.Depth(ctx)
			d.Due = d.Items
			return d, err
		}
	},
	"Cancelled": func(q *queue) {
		q.put = func(_ context.Context, items []consistency.Item) error {
			return q.Queue.Put(context.Background(), items...)
		}
	},
	"Storm": func(q *queue) { q.claimed(func(i *consistency.Item) { i.Attempts = 0 }) },
}

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
}

func (r *recorder) fail() {
	r.mu.Lock()
	r.failed = true
	r.mu.Unlock()
}

func (r *recorder) Error(...any)          { r.fail() }
func (r *recorder) Errorf(string, ...any) { r.fail() }
func (r *recorder) Fatal(...any)          { r.fail(); runtime.Goexit() }
func (r *recorder) Fatalf(string, ...any) { r.fail(); runtime.Goexit() }

// fails reports whether a test of the suite fails for a queue with this flaw; nil: none.
func fails(t *testing.T, run func(*suite), flaw func(*queue)) bool {
	r := &recorder{TB: t}
	open := func(n int, apart bool) (all []consistency.Queue) {
		q := &queue{Queue: consistency.NewMemoryQueue(0)}
		if flaw != nil {
			flaw(q)
		}
		for range n {
			if apart && !q.shared {
				q = &queue{Queue: consistency.NewMemoryQueue(0)}
			}
			all = append(all, q)
		}
		return all
	}
	b := Backend{
		New:   func(_ testing.TB, n int) []consistency.Queue { return open(n, false) },
		Apart: func(_ testing.TB, n int) []consistency.Queue { return open(n, true) },
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(&suite{TB: r, b: b})
	}()
	<-done
	return r.failed
}

// TestFlaws: each test of the suite passes for a correct queue, and fails for one with its flaw.
func TestFlaws(t *testing.T) {
	for _, test := range (Backend{}).tests() {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if fails(t, test.run, nil) {
					t.Error("fails for a correct queue")
				}
				if flaw := flaws[test.name]; flaw == nil || !fails(t, test.run, flaw) {
					t.Error("does not find the flaw")
				}
			})
		})
	}
}
