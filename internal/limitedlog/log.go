// Package limitedlog tells of what is rare, and may come in floods. A Logger logs each event once
// in QuietFor at most, with the number of times that it has happened since; a Limit counts for
// others that log by themselves. An Alarm says when to tell of what goes on failing, and that it is
// over.
package limitedlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// QuietFor is how long an event that was logged is only counted.
const QuietFor = 10 * time.Second

// MaxRecords bounds the records that wait for a slow logger. Events beyond it are counted.
const MaxRecords = 64

// Logger passes events on to a slog.Logger, on a goroutine of its own: its callers may hold locks.
// It is safe for concurrent use.
type Logger struct {
	to *slog.Logger

	mu      sync.Mutex
	limit   Limit[notable]
	records []record
	writing bool
	closed  bool
	writer  sync.WaitGroup
}

// New makes a Logger. It is Guarded.
func New(to *slog.Logger) *Logger {
	return &Logger{to: Guarded(to), limit: Limit[notable]{Quiet: QuietFor}}
}

// notable is an event of a loader, or of the cache.
type notable struct{ what, loader string }

type record struct {
	notable
	level slog.Level
	err   error
	times int64
}

// Warn logs a problem, at most once in QuietFor for each loader. loader may be "", and err nil.
func (l *Logger) Warn(what, loader string, err error) { l.note(slog.LevelWarn, what, loader, err) }

// Inform logs that a problem is over.
func (l *Logger) Inform(what, loader string) { l.note(slog.LevelInfo, what, loader, nil) }

func (l *Logger) note(level slog.Level, what, loader string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	of := notable{what, loader}
	times, due := l.limit.Count(of)
	if !due || len(l.records) >= MaxRecords {
		return
	}
	l.limit.Pass(of)
	l.records = append(l.records, record{of, level, err, times})
	if !l.writing {
		l.writing = true
		l.writer.Go(l.write)
	}
}

// write logs the records that wait.
func (l *Logger) write() {
	returned := false
	defer func() {
		if !returned { // the handler called runtime.Goexit
			l.writer.Go(l.write)
		}
	}()
	for r, more := l.next(); more; r, more = l.next() {
		l.log(r)
	}
	returned = true
}

// next takes the record that has waited longest. If there is none, nobody writes from now on.
func (l *Logger) next() (r record, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.records) == 0 {
		l.writing, l.records = false, nil
		return r, false
	}
	r, l.records = l.records[0], l.records[1:]
	return r, true
}

func (l *Logger) log(r record) {
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
	l.to.LogAttrs(context.Background(), r.level, "cacheaside: "+r.what, args...)
}

// Close returns when all records are logged. Later events are dropped.
func (l *Logger) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.writer.Wait()
}
