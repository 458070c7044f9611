package meter

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/measure"
)

// look is that at one write, some time after it.
type look struct {
	*sample
	which int // of Options.After
	redis measure.Verdict
	entry measure.Stamp
}

// run asks what is due, until the Meter is closed.
func (m *Meter) run() {
	tick := time.NewTicker(min(max(m.options.After[0]/4, 25*time.Millisecond), 250*time.Millisecond))
	defer tick.Stop()
	asked := time.Time{}
	for {
		for {
			select {
			case m.places <- struct{}{}: // before anything is taken from the queues: what waits there is late, not lost
			case <-m.life.Done():
				return
			}
			looks := m.due(time.Now())
			if len(looks) == 0 && time.Since(asked) < hello {
				<-m.places
				break
			}
			asked = time.Now()
			m.running.Go(func() {
				defer func() { <-m.places }()
				m.ask(looks)
			})
		}
		select {
		case <-tick.C:
		case <-m.life.Done():
			return
		}
	}
}

// due takes from the queues what one question can ask, and puts it into the next ones.
func (m *Meter) due(now time.Time) (looks []*look) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, after := range m.options.After {
		n := 0
		for _, s := range m.queues[i] {
			late := now.Sub(s.at) - after
			if late < 0 || len(looks) == measure.MaxAsked {
				break
			}
			n++
			if late > tolerance(after) {
				m.looks[i].Undecided++
				m.looks[i].Late++
			} else {
				looks = append(looks, &look{sample: s, which: i})
			}
			if i+1 < len(m.queues) {
				m.queues[i+1] = append(m.queues[i+1], s)
			} else {
				m.inFlight--
			}
		}
		clear(m.queues[i][:n]) // they may be gone before the array is
		m.queues[i] = m.queues[i][n:]
	}
	return looks
}

// tolerance is by how much a look may be late, and still be of that time.
func tolerance(after time.Duration) time.Duration { return max(after/4, 500*time.Millisecond) }

// ask asks all processes about some keys, looks at Redis meanwhile, and counts what comes of it.
func (m *Meter) ask(looks []*look) {
	m.mu.Lock()
	m.stats.Questions++
	m.mu.Unlock()
	q := measure.Question{ID: rand.Uint64(), Patience: m.options.Patience, Keys: make([]measure.Asked, len(looks))}
	for i, l := range looks {
		q.Keys[i] = measure.Asked{Loader: l.Loader, Hash: l.Hash, Ago: time.Since(l.at)}
	}
	listeners, err := m.cache.Ask(m.life, q)
	var answers []string
	if err == nil {
		wait := time.NewTimer(q.Patience + q.Patience/8) // for the way back
		defer wait.Stop()
		m.lookAtRedis(looks)
		select {
		case <-wait.C:
		case <-m.life.Done():
			return
		}
		answers, err = m.cache.Answers(m.life, q.ID)
	}
	if m.life.Err() == nil {
		m.count(looks, listeners, answers, err)
	}
}

// lookAtRedis looks at the entries of the keys, some at a time.
func (m *Meter) lookAtRedis(looks []*look) {
	ctx, cancel := context.WithTimeout(m.life, m.options.Patience)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	at := make(chan struct{}, comparesAtOnce)
	for _, l := range looks {
		m.mu.Lock()
		good := l.good
		m.mu.Unlock()
		at <- struct{}{}
		all.Go(func() {
			defer func() { <-at }()
			l.redis, l.entry = m.cache.Redis(ctx, l.Written, good, m.loads.Allow)
		})
	}
}

// count adds the looks of a question up.
func (m *Meter) count(looks []*look, listeners int, answers []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.stats.QuestionsFailed++
		for _, l := range looks {
			m.looks[l.which].Undecided++
			m.looks[l.which].Failed++
		}
		return
	}
	read := make([]string, 0, len(answers))
	for _, a := range answers {
		if readable(a, len(looks)) {
			read = append(read, a)
		} else {
			m.stats.Malformed++
		}
	}
	m.stats.Asked += int64(max(listeners, len(answers)))
	m.stats.Answered += int64(len(read))
	silent := len(read) < max(listeners, len(answers))
	for i, l := range looks {
		to := &m.looks[l.which]
		to.Redis.add(l.redis)
		if l.redis == measure.Same {
			l.good = l.entry
		}
		different, unknown := l.redis == measure.Different, l.redis == measure.Unknown
		for _, a := range read {
			v := measure.Verdict(a[i])
			to.Memory.add(v)
			different = different || v == measure.Different
			unknown = unknown || v == measure.Unknown
		}
		switch {
		case different:
			to.Different++
			continue
		case silent:
			to.Unanswered++
		case unknown:
			to.NotKnown++
		default:
			to.Consistent++
			continue
		}
		to.Undecided++
	}
}

// readable tells whether an answer has a verdict for each of n keys.
func readable(answer string, n int) bool {
	if len(answer) != n {
		return false
	}
	for _, v := range []byte(answer) {
		if measure.Verdict(v) >= measure.Verdicts {
			return false
		}
	}
	return true
}
