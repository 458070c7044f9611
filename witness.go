package cacheaside

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/cacheaside/cacheaside/internal/channel"
	"github.com/cacheaside/cacheaside/internal/measure"
)

// witness answers the questions of meters: what the memory of this process has of some keys.
// Anybody who may publish to the channel can ask, so what a question costs is bounded: by how many
// are answered at once and in a second, and by how many rows are loaded for them. What is not
// answered is counted, and the meter knows that nobody has answered.
type witness struct {
	cache    *Cache
	who      uint64 // this process
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

	// onTheWay is how long a question is under way as a rule. Without it, what was read in the
	// first moments after a write would be compared, as is not seldom with rows that are read
	// often. Where a question was faster, a copy that was read so much before the write is taken
	// for a later one.
	onTheWay = 10 * time.Millisecond
)

func newWitness(c *Cache) *witness {
	w := &witness{
		cache: c, who: rand.Uint64(), places: make(chan struct{}, questionsAtOnce),
		asked: rate.NewLimiter(questionsPerSecond, questionsPerSecond), compares: rate.NewLimiter(comparesPerSecond, comparesPerSecond),
	}
	w.life, w.stop = context.WithCancel(context.Background())
	return w
}

// heard begins to answer a question, if it may.
func (w *witness) heard(q channel.Question) {
	now := w.cache.channel.Now() - onTheWay // less what each key says, this is when its row was written, or later
	age := w.cache.memory.Age()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return
	case !w.asked.Allow():
		w.cache.channel.Unanswered()
		return
	}
	select {
	case w.places <- struct{}{}:
	default:
		w.cache.channel.Unanswered()
		return
	}
	w.cache.memory.Index(true)
	if w.idle == nil {
		w.idle = time.AfterFunc(indexIdle, func() { w.cache.memory.Index(false) })
	}
	w.idle.Reset(indexIdle)
	w.running.Go(func() {
		defer func() { <-w.places }()
		if !w.answer(q, now, age) {
			w.cache.channel.Unanswered()
		}
	})
}

// answer tells whether it was heard.
func (w *witness) answer(q channel.Question, now, age time.Duration) bool {
	ctx, cancel := context.WithTimeout(w.life, min(q.Patience, maxPatience))
	defer cancel()
	verdicts := make([]byte, len(q.Keys))
	var all sync.WaitGroup
	at := make(chan struct{}, comparesAtOnce)
	for i, k := range q.Keys {
		l := w.cache.known(k.Loader)
		if l == nil {
			verdicts[i] = byte(measure.None) // this process has none, so it serves nothing of it
			continue
		}
		compare := l.examineMemory(k.Hash, now-k.Ago, age-k.Ago)
		if compare.verdict != undecided {
			verdicts[i] = byte(compare.verdict)
			continue
		}
		at <- struct{}{}
		all.Go(func() {
			defer func() { <-at }()
			verdicts[i] = byte(compare.finish(ctx, w.mayLoad))
		})
	}
	all.Wait()
	taken, err := w.cache.channel.GiveAnswer(w.life, q.ID, w.who, verdicts)
	return taken && err == nil
}

func (w *witness) mayLoad() bool {
	return w.compares.Allow()
}

// close ends what is under way, and returns when that has ended.
func (w *witness) close() {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.closed = true
	if w.idle != nil {
		w.idle.Stop()
	}
	w.mu.Unlock()
	w.stop()
	w.running.Wait()
}
