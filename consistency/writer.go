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
	"github.com/cacheaside/cacheaside/internal/writeside"
)

const (
	// grace is how long after it was written relays leave a row of the outbox to the process that
	// has written it.
	grace = 2 * time.Second

	// onceMore is when a key is invalidated again whose COMMIT has failed, if no row of an outbox
	// sees to that: the server may still be carrying it out, for longer than the network takes if
	// it waits for its replicas.
	onceMore = 10 * time.Second

	// outFor is how long writes with a row in the outbox leave Redis alone after it could not be
	// reached.
	outFor = time.Second

	// within bounds what is done for a write after its commit, and again what is done to queue what
	// of that has failed. Invalidations have a tighter bound of their own, see cacheaside's
	// Options.RedisTimeout.
	within = 10 * time.Second
)

// Writer changes rows, and makes the caches forget them: it runs transactions, and invalidates the
// keys of the rows that they have changed, whatever happens in between. Make one Writer for each
// database and Cache of a process. A Writer is safe for concurrent use.
type Writer struct {
	*core
	level Level
}

// core is what the Writers of all levels share.
type core struct {
	db              *sqlx.DB
	cache           *cacheaside.Cache
	inside          inside
	options         Options
	outbox          transactional // nil: there is none
	grace, onceMore time.Duration
	outFor          time.Duration
	remover         *remover // of what is done of it
	counters

	out atomic.Pointer[time.Time] // when Redis was last found to be out of reach; nil: it is not

	mu     sync.Mutex
	closed bool
	under  sync.WaitGroup // calls that are under way

	stopRelay context.CancelFunc
	relay     *Relay // nil: it runs elsewhere
	relayed   sync.WaitGroup
	close     func() error
}

// NewWriter makes a Writer of db, which must be the database of Options.Queue if that is an outbox.
// NewWriter does no I/O, but the Writer's Relay begins to work. Close the Writer before the Cache,
// and the Cache before db and the Redis client. nil options are the defaults.
func NewWriter(db *sqlx.DB, cache *cacheaside.Cache, options *Options) (*Writer, error) {
	o := options.withDefaults()
	switch err := o.check(); {
	case err != nil:
		return nil, fmt.Errorf("consistency: %w", err)
	case db == nil || db.DB == nil:
		return nil, errors.New("consistency: the database is nil")
	case cache == nil:
		return nil, errors.New("consistency: the cache is nil")
	}
	if err := bind(o.Queue, cache); err != nil {
		return nil, fmt.Errorf("consistency: NewWriter: %w", err)
	}
	inside := writeside.Of(cache)
	if o.Level == Strict && !inside.Strict() {
		return nil, fmt.Errorf("consistency: NewWriter: Options.Level: %w", errNotStrict)
	}
	c := &core{db: db, cache: cache, inside: inside, options: o, outbox: o.outbox(), grace: grace, onceMore: onceMore, outFor: outFor, stopRelay: func() {}}
	if !o.NoRelay {
		relay, err := NewRelay(cache, o.Queue, o.Relay)
		if err != nil {
			return nil, err
		}
		c.relay = relay
		ctx, stop := context.WithCancel(context.Background())
		c.stopRelay = stop
		c.relayed.Go(func() { _ = relay.Run(ctx) }) // another end than with ctx it alerts by itself
	}
	if c.outbox != nil {
		c.remover = newRemover(o.Queue)
	}
	c.close = sync.OnceValue(c.end)
	return &Writer{core: c, level: o.Level}, nil
}

// At returns a Writer of another level that shares everything with w: they are closed together. If
// the Queue does not allow the level, calls of that Writer return an error.
func (w *Writer) At(level Level) *Writer {
	if level == ByDefault {
		level = w.options.Level
	}
	return &Writer{core: w.core, level: level}
}

// itsLevel is the level of what is done with w.
func (w *Writer) itsLevel() (Level, error) {
	if err := w.options.level(w.level); err != nil {
		return 0, fmt.Errorf("consistency: %w", err)
	}
	switch {
	case w.level == Strict && !w.inside.Strict():
		return 0, fmt.Errorf("consistency: %w", errNotStrict)
	case w.level != ByDefault:
		return w.level, nil
	case w.outbox != nil:
		return Outbox, nil
	default:
		return Inline, nil
	}
}

var errNotStrict = errors.New("Strict needs Options.StrictWrites of the Cache, in all processes")

// errWriterClosed is the ErrClosed of a Writer.
type errWriterClosed struct{}

func (errWriterClosed) Error() string { return "consistency: the Writer is closed" }

func (errWriterClosed) Unwrap() error { return cacheaside.ErrClosed }

// enter begins a call, which has to leave by w.under.Done.
func (c *core) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errWriterClosed{}
	}
	c.under.Add(1)
	return nil
}

// Close waits for the calls that are under way, for as long as they take, removes from the outbox
// what is done, and ends the Relay. Invalidations that are still to be done stay in the queue. If
// the queue is in memory and is the Writer's own, they are lost, and Close returns an error that
// says how many. After Close, calls return cacheaside.ErrClosed. It may be called again, and on the
// Writer of any level.
func (w *Writer) Close() error { return w.close() }

func (c *core) end() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.under.Wait()
	if c.remover != nil {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		c.remover.close(ctx)
	}
	c.stopRelay()
	c.relayed.Wait()
	q, ok := c.options.Queue.(*MemoryQueue)
	if !ok || c.options.NoRelay {
		return nil
	}
	depth, err := q.Depth(context.Background())
	if err != nil || depth.Items == 0 {
		return err
	}
	return fmt.Errorf("consistency: closed, and %d pending invalidations are lost", depth.Items)
}

// Stats returns the counts of this Writer, and of the Writers of other levels that share everything
// with it (see At). Stats does no I/O.
func (w *Writer) Stats() Stats {
	s := Stats{
		Updates: w.updates.Load(), RolledBack: w.rolledBack.Load(), Unknown: w.unknowns.Load(),
		HoldsRefused: w.holdsRefused.Load(), HoldsLost: w.holdsLost.Load(), NotStored: w.notStored.Load(),
		Queued: w.queued.Load(), Skipped: w.skipped.Load(), NotQueued: w.notQueued.Load(),
	}
	if w.remover != nil {
		s.Removed, s.Left = w.remover.removed.Load(), w.remover.left.Load()
	}
	if w.relay != nil {
		s.Relay = w.relay.Stats()
	}
	return s
}
