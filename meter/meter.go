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

// A Meter measures the consistency of the copies of rows that this process writes. Its methods
// are safe for concurrent use.
type Meter struct {
	options      Options
	cache        measure.Cache
	draw         func() float64 // returns a random number in [0, 1), which decides whether to sample a write
	loads        *rate.Limiter
	stopSampling func()

	writes, sampled atomic.Int64

	mu       sync.Mutex
	queues   [][]*sample // samples that wait for each of Options.After, in the order of their writes
	inFlight int
	// processes that were subscribed at the last question; 0: not known
	listeners int
	stats     Stats
	results   []Result

	ctx           context.Context
	cancel        context.CancelFunc
	running       sync.WaitGroup
	questionSlots chan struct{} // a semaphore for questions
}

// A sample is a sampled write.
type sample struct {
	measure.Written
	time     time.Time
	verified measure.Stamp // the entry that is known to contain the written value
}

const (
	maxQuestions  = 64
	maxCompares   = 16 // by one question
	helloInterval = 10 * time.Second
	// meanReplies is how many processes of a larger fleet reply to a question, on average.
	meanReplies = 100
)

// New starts a Meter for the invalidations of this process through cache: those by Invalidate and
// Inserting of its loaders, InvalidateKeys, and Invalidate of a Hold, after Redis has acknowledged
// them. This includes the invalidations of the packages consistency and canal. For a row that is
// written without any of these, call Written.
//
// nil options are the defaults. A cache has one Meter at a time, and must have Redis. The loaders
// of the written rows must exist in this process, because they load the rows for comparison.
// Several processes can have a Meter each.
//
// The Meter immediately asks which processes exist. Close it before the Cache.
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
		queues: make([][]*sample, len(o.After)), results: make([]Result, len(o.After)),
		questionSlots: make(chan struct{}, maxQuestions),
	}
	for i, after := range o.After {
		m.results[i].After = after
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	var err error
	if m.stopSampling, err = c.Sample(sampler{m}); err != nil {
		m.cancel()
		return nil, fmt.Errorf("meter: %w", err)
	}
	m.running.Go(m.run)
	return m, nil
}

// Close stops the Meter, and returns when the comparisons in progress have ended. That takes at
// most Options.Patience, unless a load function ignores its context. Samples that wait are not
// checked. The results stay available. Close can be called again, and always returns nil.
func (m *Meter) Close() error {
	m.stopSampling()
	m.cancel()
	m.running.Wait()
	return nil
}

// Written reports rows that were just written and committed, and that the Cache of this process
// has not invalidated, or not yet. It is for programs that observe writes independently of
// invalidations, and so can detect missing ones: for example a consumer of the binary log, while
// other programs write and invalidate.
//
// The keys are sampled like others. A key that is both passed to Written and invalidated in this
// process counts twice. Keys of whole loaders and groups are not measured. Written does no I/O.
func (m *Meter) Written(keys ...cacheaside.Key) error {
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return err
		}
	}
	for _, k := range keys {
		if taken := (sampler{m}); !k.All && !k.Group && taken.Take() {
			taken.Add(m.cache.Read(k.Loader, k.Version, k.Text))
		}
	}
	return nil
}

// A sampler is the part of a Meter that the Cache calls for each invalidation.
type sampler struct{ *Meter }

func (s sampler) Take() bool {
	s.writes.Add(1)
	return s.draw() < s.options.Share
}

func (s sampler) Add(w measure.Written) {
	s.sampled.Add(1)
	added := &sample{Written: w, time: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w.Key == nil:
		s.stats.Unreadable++
	case s.inFlight >= s.options.MaxSamples:
		s.stats.Dropped++
	default:
		s.inFlight++
		s.queues[0] = append(s.queues[0], added)
	}
}
