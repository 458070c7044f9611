package main

import (
	"context"
	"sync"
	"time"
)

// lab has both systems, the state of the switches, and the viewers.
type lab struct {
	config    config
	start     time.Time
	protected *world
	plain     *world

	life  context.Context
	stop  context.CancelFunc
	wg    sync.WaitGroup
	trial sync.Mutex    // held while an experiment runs
	queue chan struct{} // has an element for each experiment that runs or waits
	hand  sync.Mutex    // held while a switch is changed, so that frames show a consistent state

	mu    sync.Mutex
	state state
	turn  int64   // next row for an experiment
	watch []int64 // rows on the page
	ended bool
	film  film
}

// config has settings that tests change.
type config struct {
	window   time.Duration // how long the effect of a switch is measured
	pause    time.Duration // between the steps of the race
	frame    time.Duration // between two frames
	patience time.Duration // how long a caller waits
	connect  time.Duration // how long a query waits for a connection, and a load for its turn
	ttl      time.Duration // of plain's entries in Redis
	redis    time.Duration // time-out of protected for commands to Redis
	reads    int           // per second, at the start
	crowd    int           // number of callers in a stampede, and of keys in a burst of absent keys
}

var usual = config{window: 2 * time.Second, pause: 900 * time.Millisecond, frame: 200 * time.Millisecond,
	patience: 1500 * time.Millisecond, connect: time.Second, ttl: ttl, redis: 500 * time.Millisecond, reads: 400,
	crowd: 1000}

// state is the state of the switches.
type state struct {
	Reads       int             `json:"reads"` // per second
	Writes      int             `json:"writes"`
	Killed      bool            `json:"killed"`
	Frozen      bool            `json:"frozen"`
	Slow        bool            `json:"slow"`
	Failing     bool            `json:"failing"`
	Cut         [processes]bool `json:"cut"`
	Protections protections     `json:"protections"`
}

func newLab(c config) (*lab, error) {
	l := &lab{config: c, start: time.Now(), queue: make(chan struct{}, maxQueue),
		film: film{viewers: map[chan []byte]bool{}}, state: state{Reads: c.reads, Writes: usualWrites,
			Protections: usualProtections()}, watch: []int64{1, 2, 3, firstRace, firstStampede}}
	l.life, l.stop = context.WithCancel(context.Background())
	var err error
	l.protected, err = newWorld("protected", c, &eventLog{start: l.start},
		func(address string, db *database) (process, error) { return newProtected(address, db, c) })
	if err != nil {
		return nil, err
	}
	l.plain, err = newWorld("plain", c, &eventLog{start: l.start},
		func(address string, db *database) (process, error) { return newPlain(address, db, c.ttl), nil })
	if err != nil {
		l.protected.close()
		return nil, err
	}
	l.wg.Go(l.traffic)
	l.wg.Go(l.shoot)
	return l, nil
}

func (l *lab) worlds() [2]*world { return [2]*world{l.protected, l.plain} }

// close ends all goroutines and waits for them.
func (l *lab) close() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.stop()
	for _, w := range l.worlds() {
		w.stop()
		w.redis.each(func(k *link) { k.kill(true) })
	}
	l.wg.Wait()
	for _, w := range l.worlds() {
		w.close()
	}
}

// begin runs do on a goroutine of the lab. It returns false after close.
func (l *lab) begin(do func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.wg.Go(do)
	return true
}

// both runs a function for both systems concurrently.
func (l *lab) both(do func(*world)) {
	var wg sync.WaitGroup
	for _, w := range l.worlds() {
		wg.Go(func() { do(w) })
	}
	wg.Wait()
}
