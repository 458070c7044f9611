package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

var (
	errNoRow        = errors.New("no such row")
	errDatabase     = errors.New("the database fails")
	errNoConnection = errors.New("no connection to the database became free in time")
)

const (
	connections  = 50 // of the database, for all processes of a system
	usualLatency = 20 * time.Millisecond
	slowLatency  = 500 * time.Millisecond
)

// row is the cached value. Its version allows comparisons.
type row struct {
	ID      int64 `json:"id"`
	Version int64 `json:"version"`
}

// database is a table in memory with a configurable latency, a limited number of connections, and a
// switch that makes it fail.
type database struct {
	meter *meter
	slots chan struct{} // connections
	wait  time.Duration // for a connection

	mu      sync.Mutex
	rows    map[int64]int64 // versions
	latency time.Duration
	failing bool
	held    map[int64]*hold
	spied   map[int64]*spy
	absent  int // loads of rows that do not exist
}

// hold stops the first load of a row after it has read the row and before it returns.
type hold struct {
	read chan struct{} // closed when a load has read the row
	done chan struct{} // closed to let the load continue
	once sync.Once
}

// spy counts the loads of one row.
type spy struct{ loads, running, peak int }

func newDatabase(m *meter, wait time.Duration) *database {
	d := &database{meter: m, slots: make(chan struct{}, connections), wait: wait, rows: map[int64]int64{},
		latency: usualLatency, held: map[int64]*hold{}, spied: map[int64]*spy{}}
	for id := range allRows() {
		d.rows[id] = 1
	}
	return d
}

// load is the query that a cache saves.
func (d *database) load(ctx context.Context, id int64) (row, error) {
	d.begin(id)
	defer d.end(id)
	wait := time.NewTimer(d.wait)
	defer wait.Stop()
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-wait.C:
		return row{}, errNoConnection
	case <-ctx.Done():
		return row{}, ctx.Err()
	}
	d.mu.Lock()
	half := d.latency / 2
	d.mu.Unlock()
	if err := sleep(ctx, half); err != nil { // the query travels to the database
		return row{}, err
	}
	r, h, err := d.read(id)
	if h != nil {
		h.once.Do(func() { close(h.read) })
		select {
		case <-h.done:
		case <-ctx.Done():
			return row{}, ctx.Err()
		}
	}
	if err := sleep(ctx, half); err != nil { // the result travels back
		return row{}, err
	}
	return r, err
}

func (d *database) read(id int64) (row, *hold, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failing {
		return row{}, nil, errDatabase
	}
	version, ok := d.rows[id]
	if !ok {
		d.absent++
		return row{}, nil, errNoRow
	}
	h := d.held[id]
	delete(d.held, id)
	return row{ID: id, Version: version}, h, nil
}

func (d *database) begin(id int64) {
	d.meter.loadBegins()
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.spied[id]; s != nil {
		s.loads++
		s.running++
		s.peak = max(s.peak, s.running)
	}
}

func (d *database) end(id int64) {
	d.meter.loadEnds()
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.spied[id]; s != nil {
		s.running--
	}
}

// write changes a row without latency, so that both systems change at the same time.
func (d *database) write(id int64) (version int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failing {
		return 0, errDatabase
	}
	d.rows[id]++
	return d.rows[id], nil
}

func (d *database) version(id int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rows[id]
}

func (d *database) absentLoads() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.absent
}

func (d *database) slow(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.latency = usualLatency
	if on {
		d.latency = slowLatency
	}
}

func (d *database) fail(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = on
}

// hold stops the next load of a row until letGo is called.
func (d *database) hold(id int64) *hold {
	h := &hold{read: make(chan struct{}), done: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[id] = h
	return h
}

// letGo ends a hold, whether it has stopped a load or not.
func (d *database) letGo(id int64, h *hold) {
	close(h.done)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.held, id)
}

// spy counts the loads of a row until the returned function is called, which returns the count.
func (d *database) spy(id int64) (seen func() spy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &spy{}
	d.spied[id] = s
	return func() spy {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.spied, id)
		return *s
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
