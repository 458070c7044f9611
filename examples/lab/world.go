package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	processes  = 4
	retryEvery = 100 * time.Millisecond // after a failed invalidation
	underWay   = 4000                   // maximum number of concurrent reads of a system
)

// process is one process of a system, with the library or plain.
type process interface {
	get(ctx context.Context, id int64) (row, error)
	invalidate(ctx context.Context, ids ...int64) error
	expire(ctx context.Context, ids ...int64) error // as if their TTLs had passed
	remembers(id int64) (row, bool)                 // the row in its memory
	rebuild(on protections) error
	key(id int64) string // in Redis
	close()
}

// world is one of the two systems: its processes and the parts that they share.
type world struct {
	name     string
	patience time.Duration // of a caller
	db       *database
	redis    *redisServer
	fleet    [processes]process
	meter    *meter
	truth    *truth
	log      *eventLog

	life    context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup // of all goroutines that it has started
	reading chan struct{}
	writing atomic.Int64 // number of background writes in progress

	mu      sync.Mutex
	pending map[int64]int64 // versions by row that are written and not invalidated
	absent  int64           // the next id that has no row
}

func newWorld(
	name string, c config, log *eventLog, join func(address string, db *database) (process, error),
) (*world, error) {
	m := newMeter()
	w := &world{name: name, patience: c.patience, db: newDatabase(m, c.connect), meter: m, truth: newTruth(), log: log,
		reading: make(chan struct{}, underWay), pending: map[int64]int64{}, absent: firstAbsent}
	w.life, w.stop = context.WithCancel(context.Background())
	var err error
	if w.redis, err = newRedisServer(); err != nil {
		w.stop()
		return nil, err
	}
	for i := range w.fleet {
		p, err := join(w.redis.links[i].address(), w.db)
		if err != nil {
			w.close()
			return nil, err
		}
		w.fleet[i] = p
	}
	w.wg.Go(w.tryAgain)
	return w, nil
}

// close ends all goroutines and waits for them.
func (w *world) close() {
	w.stop()
	w.redis.each(func(l *link) { l.kill(true) }) // ends clients that hang
	w.wg.Wait()
	for _, p := range w.fleet {
		if p != nil {
			p.close()
		}
	}
	w.redis.close()
}

// readResult is the result of a read with its latency and staleness.
type readResult struct {
	row   row
	err   error
	took  time.Duration
	stale time.Duration // 0 if it is not stale
}

// read reads from a process like a caller with a deadline, and compares the result with the truth.
func (w *world) read(p int, id int64) readResult {
	return w.readFor(w.patience, p, id)
}

// readFor is read with another deadline. At the deadline the caller leaves, even if the client
// ignores the context.
func (w *world) readFor(patience time.Duration, p int, id int64) readResult {
	ctx, cancel := context.WithTimeout(w.life, patience)
	defer cancel()
	start := time.Now()
	done := make(chan readResult, 1)
	w.wg.Go(func() {
		r, err := w.fleet[p].get(ctx, id)
		done <- readResult{row: r, err: err}
	})
	var a readResult
	select {
	case a = <-done:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	a.took = time.Since(start)
	if a.err == nil {
		a.stale = w.truth.staleFor(id, a.row.Version, start)
	}
	w.meter.read(a.took, a.err != nil && !errors.Is(a.err, errNoRow), a.stale)
	return a
}

// goRead reads in the background. It refuses a read if too many are in progress.
func (w *world) goRead(p int, id int64) {
	select {
	case w.reading <- struct{}{}:
		w.wg.Go(func() {
			defer func() { <-w.reading }()
			w.read(p, id)
		})
	default:
		w.meter.read(0, true, 0)
	}
}

// write changes a row and invalidates it. A failed invalidation is retried, as by a
// consistency.Writer; plain processes do not report the failure.
func (w *world) write(p int, id int64) (version int64, err error) {
	if version, err = w.db.write(id); err != nil {
		return 0, err // nothing has changed
	}
	if err := w.fleet[p].invalidate(w.life, id); err != nil {
		w.mu.Lock()
		w.pending[id] = max(w.pending[id], version)
		w.mu.Unlock()
		return version, nil
	}
	w.truth.settle(id, version)
	return version, nil
}

// goWrite writes in the background. It ignores errors of the database, which do not affect the
// caches.
func (w *world) goWrite(p int, id int64) {
	w.writing.Add(1)
	w.wg.Go(func() {
		defer w.writing.Add(-1)
		_, _ = w.write(p, id)
	})
}

// tryAgain repeats failed invalidations.
func (w *world) tryAgain() {
	for p := 0; sleep(w.life, retryEvery) == nil; p = (p + 1) % processes {
		w.mu.Lock()
		todo := maps.Clone(w.pending)
		w.mu.Unlock()
		if len(todo) == 0 || w.fleet[p].invalidate(w.life, slices.Collect(maps.Keys(todo))...) != nil {
			continue
		}
		w.mu.Lock()
		for id, version := range todo {
			w.truth.settle(id, version)
			if w.pending[id] == version { // otherwise a later version is pending
				delete(w.pending, id)
			}
		}
		w.mu.Unlock()
	}
}

func (w *world) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending)
}

// failedVersion returns the newest version of a row whose invalidation has failed and is being
// retried, or 0.
func (w *world) failedVersion(id int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending[id]
}

// inRedis returns the row in Redis, without the clients.
func (w *world) inRedis(id int64) (row, bool) {
	text, err := w.redis.mini.Get(w.fleet[0].key(id))
	if err != nil {
		return row{}, false
	}
	if len(text) > entryHeader && text[0] != '{' { // an entry of the library
		text = text[entryHeader:]
	}
	var r row
	if json.Unmarshal([]byte(text), &r) != nil || r.ID != id { // the lease of a load in progress, or a cached absence
		return row{}, false
	}
	return r, true
}

// entryHeader is the length of the header that the library writes before a value.
const entryHeader = 32
