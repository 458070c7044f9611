package consistency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

const (
	// grace is the time that relays leave a new outbox row to the process that wrote it.
	grace = 2 * time.Second

	// repeatAfter is the delay of the second invalidation of a key whose COMMIT has failed, if no
	// outbox row covers it. The server may still be executing the COMMIT. A server that waits for
	// its replicas takes longer than the network.
	repeatAfter = 10 * time.Second

	// skipRedisFor is the time after a failed attempt during which writes with an outbox row do
	// not try Redis.
	skipRedisFor = time.Second

	// stepTimeout is the timeout of the work after a commit. If a part fails, queueing that part
	// has the same timeout again. Invalidations have a shorter timeout, see cacheaside's
	// Options.RedisTimeout.
	stepTimeout = 10 * time.Second
)

// A Writer runs transactions, and invalidates the keys of the rows that they change, even if
// Redis is down or the process is killed. Each Level defines how far that guarantee reaches. Make
// one Writer for each database and Cache of a process. A Writer is safe for concurrent use.
type Writer struct {
	*core
	inside
	level Level
}

// core is the state that the Writers of all levels share.
type core struct {
	db                 *sqlx.DB
	kind               sqldb.Kind // of db; "" if unknown
	cache              *cacheaside.Cache
	internals          writeSide
	options            Options
	outbox             TxQueue    // nil without an outbox
	hooks              QueueHooks // nil: the Queue has none
	grace, repeatAfter time.Duration
	skipRedisFor       time.Duration
	remover            *remover // of rows whose keys the Writer has invalidated; nil without an outbox
	counters

	redisDown atomic.Pointer[time.Time] // when Redis was last found unreachable; nil: the last attempt succeeded

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup // calls in progress

	relay     atomic.Pointer[Relay] // nil: not started
	stopRelay context.CancelFunc
	relayDone sync.WaitGroup
	close     func() error
}

// NewWriter returns a Writer for db, which must be the database of Options.Queue if that is an
// outbox. NewWriter does no I/O, but starts the Writer's Relay. Close the Writer before the
// Cache, and the Cache before db and the Redis client. nil options are the defaults.
func NewWriter(db *sqlx.DB, cache *cacheaside.Cache, options *Options) (*Writer, error) {
	o := options.withDefaults()
	switch err := o.check(); {
	case err != nil:
		return nil, wording.Errorf("consistency: %w", err)
	case db == nil || db.DB == nil:
		return nil, errors.New("consistency: the database is nil")
	case cache == nil:
		return nil, errors.New("consistency: the cache is nil")
	}
	internals := writeside.Of(cache)
	hooks, _ := o.Queue.(QueueHooks)
	if hooks != nil {
		if err := hooks.Bind(internals.Prefix(), db); err != nil {
			return nil, wording.Errorf("consistency: NewWriter: Options.Queue: %w", err)
		}
	}
	if o.Level == Strict && !internals.Strict() {
		return nil, wording.Errorf("consistency: NewWriter: Options.Level: %w", errNotStrict)
	}
	c := &core{
		db: db, kind: sqldb.KindOf(db), cache: cache, internals: internals, options: o,
		outbox: o.outbox(), hooks: hooks,
		grace: grace, repeatAfter: repeatAfter, skipRedisFor: skipRedisFor, stopRelay: func() {},
	}
	if !o.NoRelay {
		if err := c.startRelay(); err != nil {
			return nil, err
		}
	}
	if c.outbox != nil {
		c.remover = newRemover(o.Queue)
	}
	c.close = sync.OnceValue(c.shutDown)
	return newWriter(c, o.Level), nil
}

// StartRelay starts the Relay of a Writer that was made with Options.NoRelay, for example when the
// outbox's table has been created. Close stops it. If the Relay runs already, StartRelay does
// nothing. After Close it returns an error.
func (w *Writer) StartRelay() error { return w.startRelay() }

func (c *core) startRelay() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return errWriterClosed{}
	case c.relay.Load() != nil:
		return nil
	}
	relay, err := NewRelay(c.cache, c.options.Queue, c.options.Relay)
	if err != nil {
		return err
	}
	c.relay.Store(relay)
	ctx, stop := context.WithCancel(context.Background())
	c.stopRelay = stop
	c.relayDone.Go(func() { _ = relay.Run(ctx) }) // Run raises an alert if it ends for another reason than ctx
	return nil
}

// At returns a Writer of another level that shares everything with w, so closing one closes both.
// If the Queue or the Cache does not permit the level, the calls of the new Writer return an
// error.
func (w *Writer) At(level Level) *Writer {
	if level == DefaultLevel {
		level = w.options.Level
	}
	return newWriter(w.core, level)
}

func newWriter(c *core, level Level) *Writer {
	w := &Writer{core: c, level: level}
	w.inside = writeside.Give[writerSide](insideWriter{c, level})
	return w
}

// effectiveLevel returns the level of w, with DefaultLevel resolved. It returns an error if the
// queue or the cache does not permit the level.
func (w *Writer) effectiveLevel() (Level, error) {
	if err := w.options.checkLevel(w.level); err != nil {
		return 0, wording.Errorf("consistency: %w", err)
	}
	switch {
	case w.level == Strict && !w.internals.Strict():
		return 0, wording.Errorf("consistency: %w", errNotStrict)
	case w.level != DefaultLevel:
		return w.level, nil
	case w.outbox != nil:
		return Outbox, nil
	default:
		return Inline, nil
	}
}

var errNotStrict = errors.New("the level Strict needs Options.StrictWrites of the Cache, in all processes")

// errWriterClosed is the error of calls after Close. It wraps cacheaside.ErrClosed, whose text
// names the Cache.
type errWriterClosed struct{}

func (errWriterClosed) Error() string { return "consistency: the Writer is closed" }

func (errWriterClosed) Unwrap() error { return cacheaside.ErrClosed }

// enter registers a call, which Close waits for. The caller calls w.calls.Done at the end.
func (c *core) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errWriterClosed{}
	}
	c.calls.Add(1)
	return nil
}

// Close waits for calls in progress without a time limit, removes completed rows from the outbox,
// and stops the Relay. Pending invalidations stay in the queue. If the queue is in memory and the
// Writer runs its Relay, they are lost, and Close returns an error with their number.
//
// After Close, calls return an error that wraps cacheaside.ErrClosed. Close can be called again,
// and on the Writer of any level.
func (w *Writer) Close() error { return w.close() }

func (c *core) shutDown() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.calls.Wait()
	if c.remover != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
		defer cancel()
		c.remover.close(ctx)
	}
	c.stopRelay()
	c.relayDone.Wait()
	if c.hooks != nil {
		c.hooks.Flush()
	}
	q, ok := c.options.Queue.(*MemoryQueue)
	if !ok || c.relay.Load() == nil {
		return nil
	}
	depth, err := q.Depth(context.Background())
	if err != nil || depth.Items == 0 {
		return err
	}
	return fmt.Errorf("consistency: closed, and %d pending invalidations are lost", depth.Items)
}

// Stats returns the counters of this Writer and of the Writers that share everything with it (see
// At). It does no I/O.
func (w *Writer) Stats() Stats {
	s := Stats{
		Updates: w.updates.Load(), RolledBack: w.rolledBack.Load(), Unknown: w.unknowns.Load(),
		HoldsRefused: w.holdsRefused.Load(), HoldsLost: w.holdsLost.Load(), NotStored: w.notStored.Load(),
		Queued: w.queued.Load(), Skipped: w.skipped.Load(), NotQueued: w.notQueued.Load(),
	}
	if w.remover != nil {
		s.Removed, s.NotRemoved = w.remover.removed.Load(), w.remover.abandoned.Load()
	}
	if relay := w.relay.Load(); relay != nil {
		s.Relay = relay.Stats()
	}
	return s
}
