package meter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/measure"
)

// Meter measures the writes of one process. Its methods are safe for concurrent use.
type Meter struct {
	options Options
	cache   measure.Cache
	draw    func() float64 // for whom to take
	loads   *rate.Limiter
	untake  func()

	writes, sampled atomic.Int64

	mu       sync.Mutex
	queues   [][]*sample // those that wait for each of After, in the order of their writes
	inFlight int
	stats    Stats
	looks    []Look

	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	places  chan struct{} // of questions
}

// sample is a write that is looked at.
type sample struct {
	measure.Written
	at   time.Time
	good measure.Stamp // of the entry that is known to have what was written
}

const (
	questionsAtOnce = 64
	comparesAtOnce  = 16 // by one question
	hello           = 10 * time.Second
)

// New begins to measure the invalidations of this process through cache: by the Invalidate and
// Inserting of its loaders, InvalidateKeys, and the Release of a Hold, once Redis has acknowledged
// them; so also those of package consistency and package canal. For a row that is written without
// any of these, call Written. nil options are the defaults. A cache has one Meter at a time, and
// must have Redis; the loaders of the written rows must have been made in this process, for they
// load the rows. Several processes may have a Meter each.
//
// The Meter asks at once which processes are there: a process that has been asked for the first
// time needs LoaderOptions.MemoryTTL until it can say that it has no copy. Close the Meter before
// the Cache.
func New(cache *cacheaside.Cache, options *Options) (*Meter, error) {
	return newMeter(cache, options, rand.Float64)
}

func newMeter(cache *cacheaside.Cache, options *Options, draw func() float64) (*Meter, error) {
	o := options.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("meter: %w", err)
	}
	if cache == nil {
		return nil, errors.New("meter: the cache is nil")
	}
	c := measure.Of(cache)
	if c == nil {
		return nil, errors.New("meter: the cache has no Redis, so there are no other copies to compare")
	}
	m := &Meter{
		options: o, cache: c, draw: draw, loads: rate.NewLimiter(rate.Limit(o.LoadRate), max(1, int(o.LoadRate))),
		queues: make([][]*sample, len(o.After)), looks: make([]Look, len(o.After)), places: make(chan struct{}, questionsAtOnce),
	}
	for i, after := range o.After {
		m.looks[i].After = after
	}
	m.life, m.stop = context.WithCancel(context.Background())
	var err error
	if m.untake, err = c.Sample(sampler{m}); err != nil {
		m.stop()
		return nil, fmt.Errorf("meter: %w", err)
	}
	m.running.Go(m.run)
	return m, nil
}

// Close ends the measuring, and returns when the comparisons under way have ended: after
// Options.Patience, at the latest, but for loads that do not heed their context. Writes that are
// still to be looked at are not. The figures stay. Close may be called again, and always returns
// nil.
func (m *Meter) Close() error {
	m.untake()
	m.stop()
	m.running.Wait()
	return nil
}

// Written tells of rows that were written, and committed, now, and that this process' Cache has not
// invalidated, or not yet. It is for programs that know of writes by other ways than the
// invalidations, whose absence it finds: a consumer of the binary log beside writers that should
// invalidate by themselves, say. A share of the keys is taken, as of the others. A key that is told
// here and invalidated in this process counts twice. Keys of whole loaders are not measured.
// Written does no I/O.
func (m *Meter) Written(keys ...cacheaside.Key) error {
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return err
		}
	}
	for _, k := range keys {
		if taken := (sampler{m}); !k.All && taken.Take() {
			taken.Add(m.cache.Read(k.Loader, k.Version, k.Text))
		}
	}
	return nil
}

// sampler is how the Meter hears of invalidations.
type sampler struct{ *Meter }

func (m sampler) Take() bool {
	m.writes.Add(1)
	return m.draw() < m.options.Share
}

func (m sampler) Add(w measure.Written) {
	m.sampled.Add(1)
	s := &sample{Written: w, at: time.Now()}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case w.Key == nil:
		m.stats.Unreadable++
	case m.inFlight >= m.options.MaxSamples:
		m.stats.Dropped++
	default:
		m.inFlight++
		m.queues[0] = append(m.queues[0], s)
	}
}
