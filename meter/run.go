package meter

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/measure"
)

// A probe is one check of a sample, some time after the write.
type probe struct {
	*sample
	index int // index in Options.After
	redis measure.Verdict
	entry measure.Stamp
}

// run asks questions for due samples until the Meter is closed.
func (m *Meter) run() {
	tick := time.NewTicker(min(max(m.options.After[0]/4, 25*time.Millisecond), 250*time.Millisecond))
	defer tick.Stop()
	asked := time.Time{}
	for {
		for {
			select {
			case m.questionSlots <- struct{}{}:
				// acquired before samples are removed from the queues, where they are delayed but
				// not lost
			case <-m.ctx.Done():
				return
			}
			probes := m.due(time.Now())
			if len(probes) == 0 && time.Since(asked) < helloInterval {
				<-m.questionSlots
				break
			}
			asked = time.Now()
			m.running.Go(func() {
				defer func() { <-m.questionSlots }()
				m.ask(probes)
			})
		}
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return
		}
	}
}

// due removes due samples from the queues, at most as many as one question can contain, and adds
// them to the queues of the next times. Samples that are too late count as undecided.
func (m *Meter) due(now time.Time) (probes []*probe) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, after := range m.options.After {
		n := 0
		for _, s := range m.queues[i] {
			late := now.Sub(s.time) - after
			if late < 0 || len(probes) == measure.MaxAsked {
				break
			}
			n++
			if late > tolerance(after) {
				m.results[i].Undecided++
				m.results[i].Late++
			} else {
				probes = append(probes, &probe{sample: s, index: i})
			}
			if i+1 < len(m.queues) {
				m.queues[i+1] = append(m.queues[i+1], s)
			} else {
				m.inFlight--
			}
		}
		clear(m.queues[i][:n]) // so that they can be freed before the array
		m.queues[i] = m.queues[i][n:]
	}
	return probes
}

// tolerance returns the maximum delay of a probe that still counts for its time.
func tolerance(after time.Duration) time.Duration { return max(after/4, 500*time.Millisecond) }

// ask asks all processes about the keys of probes, checks Redis while they reply, and counts the
// results.
func (m *Meter) ask(probes []*probe) {
	m.mu.Lock()
	m.stats.Questions++
	m.mu.Unlock()
	q := measure.Question{ID: rand.Uint64(), Patience: m.options.Patience, Keys: make([]measure.Asked, len(probes)),
		Share: m.share()}
	for i, l := range probes {
		q.Keys[i] = measure.Asked{Loader: l.Loader, Hash: l.Hash, Ago: time.Since(l.time)}
	}
	listeners, err := m.cache.Ask(m.ctx, q)
	var replies []string
	if err == nil {
		wait := time.NewTimer(q.Patience + q.Patience/8) // an eighth more for the transport of the replies
		defer wait.Stop()
		m.checkRedis(probes)
		select {
		case <-wait.C:
		case <-m.ctx.Done():
			return
		}
		replies, err = m.cache.Replies(m.ctx, q.ID)
	}
	if m.ctx.Err() == nil {
		m.count(probes, q.Share, listeners, replies, err)
	}
}

// share returns the share of the processes that are to reply to the next question.
func (m *Meter) share() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return meanReplies / float64(max(m.listeners, meanReplies))
}

// checkRedis checks the entries of the keys in Redis, maxCompares concurrently.
func (m *Meter) checkRedis(probes []*probe) {
	ctx, cancel := context.WithTimeout(m.ctx, m.options.Patience)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, maxCompares)
	for _, l := range probes {
		m.mu.Lock()
		verified := l.verified
		m.mu.Unlock()
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			l.redis, l.entry = m.cache.Redis(ctx, l.Written, verified, m.loads.Allow)
		})
	}
}

// count adds the results of a question to the counters.
func (m *Meter) count(probes []*probe, share float64, listeners int, replies []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.stats.QuestionsFailed++
		for _, l := range probes {
			m.results[l.index].Undecided++
			m.results[l.index].Failed++
		}
		return
	}
	read := make([]string, 0, len(replies))
	for _, a := range replies {
		if readable(a, len(probes)) {
			read = append(read, a)
		} else {
			m.stats.Malformed++
		}
	}
	m.listeners = max(listeners, len(replies))
	expected := share * float64(m.listeners)
	m.stats.Asked += int64(math.Round(max(expected, float64(len(replies)))))
	m.stats.Answered += int64(len(read))
	silent := len(read) < m.listeners
	if share < 1 { // one question in 700 gets fewer replies by chance
		silent = float64(len(read)) < expected-3*math.Sqrt(expected*(1-share))
	}
	for i, l := range probes {
		to := &m.results[l.index]
		to.Redis.add(l.redis)
		if l.redis == measure.Same {
			l.verified = l.entry
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
			to.decided(m.listeners, len(read))
			continue
		case silent:
			to.Unanswered++
		case unknown:
			to.NotKnown++
		default:
			to.Consistent++
			to.decided(m.listeners, len(read))
			continue
		}
		to.Undecided++
	}
}

func (r *Result) decided(listening, replied int) {
	r.Listening += int64(listening)
	r.Replied += int64(replied)
}

// readable reports whether a reply has a valid verdict for each of n keys.
func readable(reply string, n int) bool {
	if len(reply) != n {
		return false
	}
	for _, v := range []byte(reply) {
		if measure.Verdict(v) >= measure.Verdicts {
			return false
		}
	}
	return true
}
