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

// Loader is a loader whose copies are audited.
type Loader interface {
	// AuditMemory looks at the copy that the memory of this process would serve of the key with
	// this stable hash, whose row was written at that time of the bus's clock, when the memory
	// had that age.
	AuditMemory(stable uint64, written, age time.Duration) Finding
}

// Finding is the result of a look at a copy in memory.
type Finding struct {
	Verdict measure.Verdict
	Compare func(ctx context.Context, mayLoad func() bool) measure.Verdict // where Verdict is Undecided
}

// Responder answers the questions of meters: which copies the memory of this process has of some
// keys. Anybody who may publish to the Redis channel can ask, so the cost of questions is bounded:
// the number that is answered at once and in a second, and the number of rows that are loaded for
// them. Questions without an answer are counted, and the meter sees that this process has not
// answered. Methods of a nil Responder do nothing.
type Responder struct {
	bus      *invalidation.Bus
	memory   *memory.Tier
	loader   func(name string) Loader // nil: this process has no such loader
	who      uint64                   // this process
	asked    *rate.Limiter
	compares *rate.Limiter
	places   chan struct{}
	life     context.Context
	stop     context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
	idle    *time.Timer // ends the index of the memory tier, when nobody has asked for long
}

const (
	questionsAtOnce    = 8
	questionsPerSecond = 40
	comparesPerSecond  = 20 // rows that are loaded for questions; a difference takes two
	comparesAtOnce     = 16 // by one question
	maxPatience        = 10 * time.Second
	indexIdle          = time.Minute

	// onTheWay is the usual time of a question on its way. Without it, copies that were read in the
	// first moments after a write would be compared, which are not rare for rows that are read
	// often. Where a question was faster, a copy that was read up to so much before the write
	// passes for a later one.
	onTheWay = 10 * time.Millisecond
)

// NewResponder makes a Responder, which loader gives its loaders.
func NewResponder(c *invalidation.Bus, tier *memory.Tier, loader func(name string) Loader) *Responder {
	r := &Responder{
		bus: c, memory: tier, loader: loader, who: rand.Uint64(), places: make(chan struct{}, questionsAtOnce),
		asked: rate.NewLimiter(questionsPerSecond, questionsPerSecond), compares: rate.NewLimiter(comparesPerSecond, comparesPerSecond),
	}
	r.life, r.stop = context.WithCancel(context.Background())
	return r
}

// Heard begins to answer a question, if it may.
func (r *Responder) Heard(q invalidation.Question) {
	now := r.bus.Now() - onTheWay // minus the Ago of a key, this is when its row was written, or later
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
	select {
	case r.places <- struct{}{}:
	default:
		r.bus.Unanswered()
		return
	}
	r.memory.Index(true)
	if r.idle == nil {
		r.idle = time.AfterFunc(indexIdle, func() { r.memory.Index(false) })
	}
	r.idle.Reset(indexIdle)
	r.running.Go(func() {
		defer func() { <-r.places }()
		if !r.answer(q, now, age) {
			r.bus.Unanswered()
		}
	})
}

// answer reports whether the meter has the answer.
func (r *Responder) answer(q invalidation.Question, now, age time.Duration) bool {
	ctx, cancel := context.WithTimeout(r.life, min(q.Patience, maxPatience))
	defer cancel()
	verdicts := make([]byte, len(q.Keys))
	var all sync.WaitGroup
	at := make(chan struct{}, comparesAtOnce)
	for i, k := range q.Keys {
		l := r.loader(k.Loader)
		if l == nil {
			verdicts[i] = byte(measure.None) // this process serves nothing of it
			continue
		}
		found := l.AuditMemory(k.Hash, now-k.Ago, age-k.Ago)
		if found.Verdict != Undecided {
			verdicts[i] = byte(found.Verdict)
			continue
		}
		at <- struct{}{}
		all.Go(func() {
			defer func() { <-at }()
			verdicts[i] = byte(found.Compare(ctx, r.compares.Allow))
		})
	}
	all.Wait()
	taken, err := r.bus.GiveAnswer(r.life, q.ID, r.who, verdicts)
	return taken && err == nil
}

// Close ends the answers that are under way, and waits for their end.
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
