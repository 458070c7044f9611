package main

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	maxViewers   = 16
	historySpan  = time.Minute
	smoothFrames = 5 // number of frames over which rates and quantiles are computed
)

// film sends frames, several per second, to all viewers.
type film struct {
	mu      sync.Mutex
	viewers map[chan []byte]bool
	points  []points // of the last minute
}

// frame has all data that the page shows at one time. Frames are independent: a viewer that has
// missed one only needs the next.
type frame struct {
	At        int64 `json:"at"` // milliseconds since the start
	State     state `json:"state"`
	Protected scene `json:"protected"`
	Plain     scene `json:"plain"`
}

// points are the plotted values of a frame.
type points struct {
	At        int64 `json:"at"`
	Protected point `json:"protected"`
	Plain     point `json:"plain"`
}

// point has the counts of one system for the last second.
type point struct {
	Hits   float64 `json:"hits"` // share of reads without a load
	Loads  float64 `json:"loads"`
	AtOnce int     `json:"at_once"`
	P99    float64 `json:"p99_ms"`
	Errors float64 `json:"errors"`
	Stale  float64 `json:"stale"`
	Reads  float64 `json:"reads"`
}

// scene is the state of one system.
type scene struct {
	Now      point     `json:"now"`
	Reads    int       `json:"reads"` // since the start, as the following fields
	Loads    int       `json:"loads"`
	Errors   int       `json:"errors"`
	Stale    int       `json:"stale"`
	Overdue  int       `json:"overdue"`
	OldestMs float64   `json:"oldest_ms"`
	Pending  int       `json:"pending"`
	Watched  []watched `json:"watched"`
	Log      []event   `json:"log"`
}

// watched is the state of one row in all tiers.
type watched struct {
	ID       int64           `json:"id"`
	Database int64           `json:"database"`
	Redis    seen            `json:"redis"`
	Memory   [processes]seen `json:"memory"`
}

// seen is a version in a cache, or 0 for none.
type seen struct {
	Version int64 `json:"v"`
	Stale   bool  `json:"stale"`
}

// shoot makes frames until the lab ends.
func (l *lab) shoot() {
	ticker := time.NewTicker(l.config.frame)
	defer ticker.Stop()
	recent := map[*world][]*tally{}
	open := map[*world]*tally{}
	for _, w := range l.worlds() {
		open[w] = w.meter.begin()
	}
	for {
		select {
		case <-ticker.C:
		case <-l.life.Done():
			return
		}
		for _, w := range l.worlds() {
			next := w.meter.begin()
			recent[w] = append(recent[w], w.meter.end(open[w]))
			if len(recent[w]) > smoothFrames {
				recent[w] = recent[w][1:]
			}
			open[w] = next
		}
		l.show(l.take(recent))
	}
}

// take makes a frame of the last tallies.
func (l *lab) take(recent map[*world][]*tally) frame {
	l.mu.Lock()
	f := frame{At: time.Since(l.start).Milliseconds(), State: l.state}
	rows := slices.Clone(l.watch)
	l.mu.Unlock()
	for _, w := range l.worlds() {
		into := &f.Protected
		if w.name == "plain" {
			into = &f.Plain
		}
		*into = w.scene(recent[w], rows)
	}
	return f
}

func (w *world) scene(recent []*tally, rows []int64) scene {
	total := w.meter.sum()
	s := scene{Reads: total.Reads, Loads: total.Loads, Errors: total.Errors, Stale: total.Stale, Overdue: total.Overdue,
		OldestMs: inMilliseconds(total.Oldest), Pending: w.waiting(), Log: w.log.lines()}
	var now tally
	for _, t := range recent {
		now.add(t)
	}
	seconds := time.Since(recent[0].begun).Seconds()
	rate := func(n int) float64 { return math.Round(float64(n)/seconds*10) / 10 }
	s.Now = point{Hits: math.Round(now.hits()*1000) / 1000, Loads: rate(now.Loads),
		AtOnce: recent[len(recent)-1].AtOnce,
		P99:    inMilliseconds(now.Took.quantile(0.99)), Errors: rate(now.Errors), Stale: rate(now.Stale),
		Reads: rate(now.Reads)}
	for _, id := range rows {
		s.Watched = append(s.Watched, w.look(id))
	}
	return s
}

// look reads a row in all tiers. A version is outdated if a newer change was finished before, or
// if the invalidation of a newer change has failed and is being retried.
func (w *world) look(id int64) watched {
	start := time.Now()
	out := watched{ID: id}
	failed := w.failedVersion(id)
	see := func(r row, ok bool) seen {
		if !ok {
			return seen{}
		}
		return seen{Version: r.Version, Stale: r.Version < failed || w.truth.staleFor(id, r.Version, start) > 0}
	}
	out.Redis = see(w.inRedis(id))
	for i, p := range w.fleet {
		out.Memory[i] = see(p.remembers(id))
	}
	out.Database = w.db.version(id)
	return out
}

// show sends a frame to all viewers. A viewer that has not received the last one misses this one.
func (l *lab) show(f frame) {
	text, err := json.Marshal(f)
	if err != nil {
		panic(err) // impossible: plain structs without NaN
	}
	v := &l.film
	v.mu.Lock()
	defer v.mu.Unlock()
	v.points = append(v.points, points{f.At, f.Protected.Now, f.Plain.Now})
	if most := int(historySpan / l.config.frame); len(v.points) > most {
		v.points = slices.Delete(v.points, 0, len(v.points)-most)
	}
	for viewer := range maps.Keys(v.viewers) {
		select {
		case <-viewer:
		default:
		}
		viewer <- text
	}
}

// view returns the last minute as JSON, and a channel of frames. It returns false if there are too
// many viewers.
func (f *film) view() (history []byte, frames chan []byte, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.viewers) >= maxViewers {
		return nil, nil, false
	}
	history, err := json.Marshal(f.points)
	if err != nil {
		panic(err)
	}
	frames = make(chan []byte, 1)
	f.viewers[frames] = true
	return history, frames, true
}

func (f *film) leave(frames chan []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.viewers, frames)
}

func inMilliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Millisecond)*100) / 100
}
