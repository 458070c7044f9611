package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

var (
	errBusy   = errors.New("other experiments are waiting already")
	errClosed = errors.New("the lab is closing")
)

// order is the body of a POST. Each switch accepts some fields and refuses the others.
type order struct {
	On      *bool   `json:"on,omitempty"`
	Process *int    `json:"process,omitempty"` // 1 to 4
	Name    *string `json:"name,omitempty"`
	Reads   *int    `json:"reads,omitempty"`
	Writes  *int    `json:"writes,omitempty"`
}

// outcome has the log lines of both systems after a switch.
type outcome struct {
	Protected string `json:"protected"`
	Plain     string `json:"plain"`
}

// badOrder is an error in a client's request.
type badOrder string

func (b badOrder) Error() string { return string(b) }

// switches lists the actions by the names of their addresses, with the fields that each needs.
var switches = map[string]struct {
	needs []string
	do    func(*lab, order) (outcome, error)
}{
	"kill":       {[]string{"on"}, (*lab).kill},
	"freeze":     {[]string{"on"}, (*lab).freeze},
	"flush":      {nil, (*lab).flush},
	"bus":        {[]string{"on", "process"}, (*lab).cutBus},
	"slow":       {[]string{"on"}, (*lab).slow},
	"fail":       {[]string{"on"}, (*lab).fail},
	"expire":     {nil, (*lab).expire},
	"stampede":   {nil, (*lab).stampede},
	"absent":     {nil, (*lab).absent},
	"race":       {nil, (*lab).race},
	"traffic":    {[]string{"reads", "writes"}, (*lab).setTraffic},
	"protection": {[]string{"name", "on"}, (*lab).protect},
}

// throw performs the action of a switch. It returns when its effect has been measured, or when ctx
// ends. The action continues in that case.
func (l *lab) throw(ctx context.Context, name string, o order) (outcome, error) {
	s, ok := switches[name]
	if !ok {
		return outcome{}, badOrder("there is no such switch")
	}
	if err := o.check(s.needs); err != nil {
		return outcome{}, err
	}
	type result struct {
		outcome outcome
		err     error
	}
	done := make(chan result, 1)
	if !l.begin(func() {
		out, err := s.do(l, o)
		done <- result{out, err}
	}) {
		return outcome{}, errClosed
	}
	select {
	case r := <-done:
		return r.outcome, r.err
	case <-ctx.Done():
		return outcome{}, ctx.Err()
	case <-l.life.Done():
		return outcome{}, errClosed
	}
}

// check checks that the order has the fields of its switch, in range, and no others.
func (o order) check(needs []string) error {
	for _, f := range []struct {
		name  string
		given bool
	}{{"on", o.On != nil}, {"process", o.Process != nil}, {"name", o.Name != nil}, {"reads", o.Reads != nil},
		{"writes", o.Writes != nil}} {
		switch needed := slices.Contains(needs, f.name); {
		case needed && !f.given:
			return badOrder(f.name + " is missing")
		case !needed && f.given:
			return badOrder(f.name + " has no meaning for this switch")
		}
	}
	switch {
	case o.Process != nil && (*o.Process < 1 || *o.Process > processes):
		return badOrder(fmt.Sprintf("process: from 1 to %d", processes))
	case o.Reads != nil && (*o.Reads < 0 || *o.Reads > mostReads):
		return badOrder(fmt.Sprintf("reads: from 0 to %d", mostReads))
	case o.Writes != nil && (*o.Writes < 0 || *o.Writes > mostWrites):
		return badOrder(fmt.Sprintf("writes: from 0 to %d", mostWrites))
	case o.Name != nil && !slices.Contains(protectionNames, *o.Name):
		return badOrder("name: one of " + strings.Join(protectionNames, ", "))
	}
	return nil
}

// measure changes the state, acts on both systems, and logs the counts of their traffic afterwards.
func (l *lab) measure(name, description string, change func(*state), do func(*world)) (outcome, error) {
	type measured struct {
		line  int64
		tally *tally
	}
	begun := map[*world]*measured{l.protected: {}, l.plain: {}}
	l.hand.Lock()
	l.mu.Lock()
	change(&l.state)
	l.mu.Unlock()
	l.both(func(w *world) {
		*begun[w] = measured{w.log.begin(name, description+" …"), w.meter.begin()}
		do(w)
	})
	l.hand.Unlock()

	_ = sleep(l.life, l.config.window)
	var out outcome
	for w, m := range begun {
		t := w.meter.end(m.tally)
		text := fmt.Sprintf("%s In the first %.1f s: %s.", description, time.Since(t.begun).Seconds(), t)
		if n := w.waiting(); n > 0 {
			text += fmt.Sprintf(" %s to retry.", count(n, "invalidation"))
		}
		w.log.finish(m.line, text)
		out.set(w, text)
	}
	return out, nil
}

func (o *outcome) set(w *world, text string) {
	if w.name == "plain" {
		o.Plain = text
	} else {
		o.Protected = text
	}
}

func either(on bool, yes, no string) string {
	if on {
		return yes
	}
	return no
}

func (l *lab) kill(o order) (outcome, error) {
	return l.measure("kill", either(*o.On, "Redis is killed.", "Redis is started again."),
		func(s *state) { s.Killed = *o.On },
		func(w *world) { w.redis.each(func(k *link) { k.kill(*o.On) }) })
}

func (l *lab) freeze(o order) (outcome, error) {
	return l.measure("freeze", either(*o.On, "Redis is frozen.", "Redis is thawed."),
		func(s *state) { s.Frozen = *o.On },
		func(w *world) { w.redis.each(func(k *link) { k.freeze(*o.On) }) })
}

func (l *lab) flush(order) (outcome, error) {
	return l.measure("flush", "Redis is emptied.", nothing, func(w *world) { w.redis.mini.FlushAll() })
}

func (l *lab) cutBus(o order) (outcome, error) {
	p := *o.Process - 1
	return l.measure("bus", fmt.Sprintf("Process %d %s.", *o.Process,
		either(*o.On, "does not receive invalidations", "receives invalidations again")),
		func(s *state) { s.Cut[p] = *o.On },
		func(w *world) { w.redis.links[p].cutBus(*o.On) })
}

func (l *lab) slow(o order) (outcome, error) {
	return l.measure("slow", either(*o.On, "A query takes "+milliseconds(slowLatency)+".",
		"A query takes "+milliseconds(usualLatency)+" again."),
		func(s *state) { s.Slow = *o.On },
		func(w *world) { w.db.slow(*o.On) })
}

func (l *lab) fail(o order) (outcome, error) {
	return l.measure("fail", either(*o.On, "The database fails.", "The database works again."),
		func(s *state) { s.Failing = *o.On },
		func(w *world) { w.db.fail(*o.On) })
}

func (l *lab) expire(order) (outcome, error) {
	ids := make([]int64, trafficRows)
	for i := range ids {
		ids[i] = int64(i) + 1
	}
	return l.measure("expire", fmt.Sprintf("All %d keys expire.", trafficRows), nothing, func(w *world) {
		for i, p := range w.fleet {
			if _, ok := p.(*protected); ok && i > 0 {
				break // processes are notified
			}
			_ = p.expire(w.life, ids...) // has no effect while Redis is down
		}
	})
}

func (l *lab) setTraffic(o order) (outcome, error) {
	return l.measure("traffic", fmt.Sprintf("%d reads and %d writes a second.", *o.Reads, *o.Writes),
		func(s *state) { s.Reads, s.Writes = *o.Reads, *o.Writes },
		func(*world) {})
}

func nothing(*state) {}

func (l *lab) stampede(order) (outcome, error) {
	return l.experiment("stampede", firstStampede,
		func(w *world, id int64, _ func(string)) string { return w.stampede(id, l.config.crowd) })
}

func (l *lab) absent(order) (outcome, error) {
	return l.experiment("absent", 0,
		func(w *world, _ int64, _ func(string)) string { return w.sendAbsent(l.config.crowd) })
}

func (l *lab) race(order) (outcome, error) {
	return l.experiment("race", firstRace,
		func(w *world, id int64, said func(string)) string { return w.race(id, l.config.pause, said) })
}

// experiment calls run for one system after the other, so that they do not compete for the
// processor. The race, which mostly waits, runs in both at the same time.
func (l *lab) experiment(
	name string, first int64, run func(w *world, id int64, said func(string)) string,
) (outcome, error) {
	done, err := l.alone()
	if err != nil {
		return outcome{}, err
	}
	defer done()
	id := l.nextRow(first)
	var out outcome
	do := func(w *world) {
		line := w.log.begin(name, "…")
		text := run(w, id, func(text string) { w.log.note(line, text) })
		w.log.finish(line, text)
		out.set(w, text)
	}
	if name == "race" {
		l.both(do)
		return out, nil
	}
	for _, w := range l.worlds() {
		do(w)
	}
	return out, nil
}

// maxQueue is the maximum number of experiments that wait or run.
const maxQueue = 8

// alone waits until no other experiment runs.
func (l *lab) alone() (done func(), err error) {
	select {
	case l.queue <- struct{}{}:
	default:
		return nil, errBusy
	}
	l.trial.Lock()
	return func() {
		l.trial.Unlock()
		<-l.queue
	}, nil
}

// nextRow returns a row of this kind that was not used for a long time, and shows it on the page.
func (l *lab) nextRow(first int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn++
	id := first + l.turn%experimentRows
	switch first {
	case firstRace:
		l.watch[3] = id
	case firstStampede:
		l.watch[4] = id
	}
	return id
}

// protect creates the caches again with other options.
func (l *lab) protect(o order) (outcome, error) {
	var on protections
	changed := "protected"
	if *o.Name == plainMap {
		changed = "plain"
	}
	var failed error
	out, _ := l.measure("protection", fmt.Sprintf("%s %s.", *o.Name, either(*o.On, "on", "off")),
		func(s *state) {
			on = maps.Clone(s.Protections)
			on[*o.Name] = *o.On
			s.Protections = on
		},
		func(w *world) {
			if w.name != changed {
				return
			}
			for _, p := range w.fleet {
				failed = cmp.Or(failed, p.rebuild(on))
			}
		})
	return out, failed
}
