package cacheaside

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// quietFor is for how long something that was logged is not logged again, only counted.
const quietFor = 10 * time.Second

// maxRecords bounds what waits to be logged, for a logger may be slow; what does not fit is
// counted.
const maxRecords = 64

// journal logs what is rare. Who notes something neither waits for the logger nor calls it: he may
// hold locks.
type journal struct {
	logger *slog.Logger

	mu      sync.Mutex
	recent  map[notable]*noted
	records []record
	writing bool
	closed  bool
	writer  sync.WaitGroup
}

// notable is something that may happen to a loader, or to the cache.
type notable struct{ what, loader string }

type noted struct {
	at    time.Time // when it was last logged
	times int64     // since then
}

type record struct {
	notable
	level slog.Level
	err   error
	times int64
}

// warn notes something that somebody should know, at most once in quietFor for each loader. loader
// may be "", and err nil.
func (j *journal) warn(what, loader string, err error) { j.note(slog.LevelWarn, what, loader, err) }

// inform notes that something is well again.
func (j *journal) inform(what, loader string) { j.note(slog.LevelInfo, what, loader, nil) }

func (j *journal) note(level slog.Level, what, loader string, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	of, now := notable{what, loader}, time.Now()
	n := j.recent[of]
	if n == nil {
		n = &noted{}
		if j.recent == nil {
			j.recent = make(map[notable]*noted)
		}
		j.recent[of] = n
	}
	n.times++
	if !n.at.IsZero() && now.Sub(n.at) < quietFor || len(j.records) >= maxRecords {
		return
	}
	j.records = append(j.records, record{of, level, err, n.times})
	n.at, n.times = now, 0
	if !j.writing {
		j.writing = true
		j.writer.Go(j.write)
	}
}

// write logs what waits for it.
func (j *journal) write() {
	defer func() {
		if p := recover(); p != nil { // the logger's own: nobody can be told
			j.mu.Lock()
			defer j.mu.Unlock()
			j.writing = false
		}
	}()
	for {
		j.mu.Lock()
		records := j.records
		j.records = nil
		j.writing = len(records) > 0
		j.mu.Unlock()
		if len(records) == 0 {
			return
		}
		for _, r := range records {
			j.log(r)
		}
	}
}

func (j *journal) log(r record) {
	args := make([]slog.Attr, 0, 3)
	if r.loader != "" {
		args = append(args, slog.String("loader", r.loader))
	}
	if r.err != nil {
		args = append(args, slog.Any("error", r.err))
	}
	if r.times > 1 {
		args = append(args, slog.Int64("times", r.times))
	}
	j.logger.LogAttrs(context.Background(), r.level, "cacheaside: "+r.what, args...)
}

// close ends it, when all has been logged.
func (j *journal) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.writer.Wait()
}
