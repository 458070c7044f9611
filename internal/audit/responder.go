package audit

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// A Loader is a loader whose copies are audited.
type Loader interface {
	// AuditMemory examines the copy that the memory of this process would serve for the key with
	// this stable hash. written is the time of the write of the row by the clock of the bus, and
	// age is the age of the memory tier at that time.
	AuditMemory(stable uint64, written, age time.Duration) Finding
}

// A Finding is the result of examining a copy in memory.
type Finding struct {
	Verdict measure.Verdict
	Compare func(ctx context.Context, mayLoad func() bool) measure.Verdict // set if Verdict is Undecided
}

// A Responder replies to the questions of meters: which copies of some keys are in the memory of
// this process. Anyone who may publish to the Redis channel can ask, so the cost of questions is
// limited: the number that is processed concurrently and per second, and the number of rows that
// are loaded for them. Questions without a reply are counted, and the meter sees that this
// process has not replied. Methods of a nil Responder do nothing.
type Responder struct {
	bus      *invalidation.Bus
	memory   *memory.Tier
	loader   func(name string) Loader // returns nil if this process has no such loader
	process  uint64                   // identifies this process
	asked    *rate.Limiter
	compares *rate.Limiter
	slots    chan struct{} // a semaphore
	life     context.Context
	stop     context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
	idle    *time.Timer // removes the index of the memory tier after indexIdle without questions
}

const (
	questionsAtOnce    = 8
	questionsPerSecond = 40
	comparesPerSecond  = 20 // rows loaded for questions; a difference takes two
	comparesAtOnce     = 16 // for one question
	maxPatience        = 10 * time.Second
	indexIdle          = time.Minute

	// onTheWay is the usual time from a question to its receipt. It is subtracted from the time of
	// receipt, to estimate when the row was written. Otherwise copies that were read immediately
	// after the write would be compared, and these are common for rows that are read often. If a
	// question arrives faster, a copy that was read shortly before the write counts as read after
	// it.
	onTheWay = 10 * time.Millisecond
)

// NewResponder returns a Responder. loader returns the loader with a name.
func NewResponder(c *invalidation.Bus, tier *memory.Tier, loader func(name string) Loader) *Responder {
	r := &Responder{
		bus: c, memory: tier, loader: loader, process: rand.Uint64(), slots: make(chan struct{}, questionsAtOnce),
		asked:    rate.NewLimiter(questionsPerSecond, questionsPerSecond),
		compares: rate.NewLimiter(comparesPerSecond, comparesPerSecond),
	}
	r.life, r.stop = context.WithCancel(context.Background())
	return r
}

// HandleQuestion starts to process a received question, within the limits.
func (r *Responder) HandleQuestion(q invalidation.Question) {
	now := r.bus.Now() - onTheWay // minus the Ago of a key, this is no earlier than the write of its row
	age := r.memory.Age()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return
	case !r.asked.Allow():
		r.bus.Unanswered()
		return
	}
	r.memory.Index(true)
	if r.idle == nil {
		r.idle = time.AfterFunc(indexIdle, func() { r.memory.Index(false) })
	}
	r.idle.Reset(indexIdle)
	if q.Share > 0 && rand.Float64() >= q.Share {
		return // others reply
	}
	select {
	case r.slots <- struct{}{}:
	default:
		r.bus.Unanswered()
		return
	}
	r.running.Go(func() {
		defer func() { <-r.slots }()
		if !r.reply(q, now, age) {
			r.bus.Unanswered()
		}
	})
}

// reply compares the copies and sends the verdicts. It reports whether the reply was accepted.
func (r *Responder) reply(q invalidation.Question, now, age time.Duration) bool {
	ctx, cancel := context.WithTimeout(r.life, min(q.Patience, maxPatience))
	defer cancel()
	verdicts := make([]byte, len(q.Keys))
	var all sync.WaitGroup
	slots := make(chan struct{}, comparesAtOnce)
	for i, k := range q.Keys {
		l := r.loader(k.Loader)
		if l == nil {
			verdicts[i] = byte(measure.None) // this process serves no value of that loader
			continue
		}
		found := l.AuditMemory(k.Hash, now-k.Ago, age-k.Ago)
		if found.Verdict != Undecided {
			verdicts[i] = byte(found.Verdict)
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			verdicts[i] = byte(found.Compare(ctx, r.compares.Allow))
		})
	}
	all.Wait()
	taken, err := r.bus.Reply(r.life, q.ID, r.process, verdicts)
	return taken && err == nil
}

// Close aborts replies in progress, and waits for their goroutines.
func (r *Responder) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	if r.idle != nil {
		r.idle.Stop()
	}
	r.mu.Unlock()
	r.stop()
	r.running.Wait()
}
