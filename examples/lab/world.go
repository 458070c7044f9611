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
	retryEvery = 100 * time.Millisecond // what could not be invalidated
	underWay   = 4000                   // reads of a world at once, at most
)

// process is one program of a fleet, in one of the two manners.
type process interface {
	get(ctx context.Context, id int64) (row, error)
	invalidate(ctx context.Context, ids ...int64) error
	expire(ctx context.Context, ids ...int64) error // as if their TTLs had passed
	remembers(id int64) (row, bool)                 // what its memory would answer now
	rebuild(on protections) error
	key(id int64) string // in Redis
	close()
}

// world is a fleet of processes of one manner, with what they share.
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
	wg      sync.WaitGroup // of all that it has begun
	reading chan struct{}
	writing atomic.Int64 // writes that nobody waits for, and that have not ended

	mu      sync.Mutex
	pending map[int64]int64 // versions by row: written, and not yet invalidated
	absent  int64           // the next id that has no row
}

func newWorld(name string, c config, log *eventLog, join func(address string, db *database) (process, error)) (*world, error) {
	m := newMeter()
	w := &world{name: name, patience: c.patience, db: newDatabase(m, c.connect), meter: m, truth: newTruth(), log: log, reading: make(chan struct{}, underWay), pending: map[int64]int64{}, absent: firstAbsent}
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

// close ends all that goes on, and waits for it.
func (w *world) close() {
	w.stop()
	w.redis.each(func(l *link) { l.kill(true) }) // a client that hangs ends now
	w.wg.Wait()
	for _, p := range w.fleet {
		if p != nil {
			p.close()
		}
	}
	w.redis.close()
}

// answer is what a read has come to.
type answer struct {
	row   row
	err   error
	took  time.Duration
	stale time.Duration // 0: it is not
}

// read asks a process, as a caller of some patience, and compares the answer with the truth.
func (w *world) read(p int, id int64) answer {
	return w.readFor(w.patience, p, id)
}

// readFor is read for a caller of another patience. When it has run out the caller has left,
// whether the client heeds the context or hangs.
func (w *world) readFor(patience time.Duration, p int, id int64) answer {
	ctx, cancel := context.WithTimeout(w.life, patience)
	defer cancel()
	start := time.Now()
	answered := make(chan answer, 1)
	w.wg.Go(func() {
		r, err := w.fleet[p].get(ctx, id)
		answered <- answer{row: r, err: err}
	})
	var a answer
	select {
	case a = <-answered:
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

// goRead is a read that nobody waits for. A read that comes when too many are under way is turned
// away.
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

// write changes a row, and invalidates it. A failed invalidation is tried again, as a
// consistency.Writer would; the plain processes do not tell that it failed.
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

// goWrite is a write that nobody waits for. That the database refuses it is no concern of the
// caches.
func (w *world) goWrite(p int, id int64) {
	w.writing.Add(1)
	w.wg.Go(func() {
		defer w.writing.Add(-1)
		_, _ = w.write(p, id)
	})
}

// tryAgain invalidates what could not be.
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
			if w.pending[id] == version { // else there is a later one
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

// inRedis returns the row that Redis holds, the clients passed by.
func (w *world) inRedis(id int64) (row, bool) {
	text, err := w.redis.mini.Get(w.fleet[0].key(id))
	if err != nil {
		return row{}, false
	}
	if len(text) > entryHeader && text[0] != '{' { // an entry of the library
		text = text[entryHeader:]
	}
	var r row
	if json.Unmarshal([]byte(text), &r) != nil || r.ID != id { // the lease of a load that is under way, or that there is no such row
		return row{}, false
	}
	return r, true
}

// entryHeader is how long what the library writes before a value is.
const entryHeader = 32
