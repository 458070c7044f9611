// Package limitedlog limits the reports of events that are rare but may come in large numbers. A
// Logger logs each event at most once in QuietFor, with the number of times that it has occurred
// since. A Limit counts events for other loggers. An Alarm decides when to report a persistent
// failure and its end.
package limitedlog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// QuietFor is how long an event is only counted after it was logged.
const QuietFor = 10 * time.Second

// MaxRecords is the maximum number of records that wait for a slow logger. Further events are
// only counted.
const MaxRecords = 64

// A Logger passes events to a slog.Logger, on a separate goroutine, because its callers may hold
// locks. It is safe for concurrent use.
type Logger struct {
	to *slog.Logger

	mu      sync.Mutex
	limit   Limit[notable]
	records []record
	writing bool
	closed  bool
	writer  sync.WaitGroup
}

// New returns a Logger that writes to the handler of to. A panic of that handler has no
// consequences: see Guarded.
func New(to *slog.Logger) *Logger {
	return &Logger{to: Guarded(to), limit: Limit[notable]{Quiet: QuietFor}}
}

// notable identifies an event of a loader, or of the cache.
type notable struct{ message, loader string }

type record struct {
	notable
	level slog.Level
	err   error
	times int64
}

// Warn logs a problem, at most once in QuietFor for each loader. loader may be "", and err may be
// nil.
func (l *Logger) Warn(message, loader string, err error) {
	l.note(slog.LevelWarn, message, loader, err)
}

// Inform logs that a problem has ended.
func (l *Logger) Inform(message, loader string) { l.note(slog.LevelInfo, message, loader, nil) }

func (l *Logger) note(level slog.Level, message, loader string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	event := notable{message, loader}
	times, due := l.limit.Count(event)
	if !due || len(l.records) >= MaxRecords {
		return
	}
	l.limit.Pass(event)
	l.records = append(l.records, record{event, level, err, times})
	if !l.writing {
		l.writing = true
		l.writer.Go(l.write)
	}
}

// write logs the waiting records.
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

// next removes the oldest waiting record. If there is none, it marks the writer as stopped.
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
	l.to.LogAttrs(context.Background(), r.level, "cacheaside: "+r.message, args...)
}

// Close waits until all records are logged. Later events are dropped.
func (l *Logger) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.writer.Wait()
}

// A Limit lets an event of each kind pass at most once in Quiet, and counts the others. It has no
// lock: its callers must hold one.
type Limit[K comparable] struct {
	Quiet time.Duration

	seen map[K]*counted
}

type counted struct {
	time  time.Time // when an event passed last
	times int64     // events since then
}

// Count counts an event. It returns the number of events of its kind since the last one passed,
// and whether this one may pass. If it does, the caller must call Pass.
func (l *Limit[K]) Count(kind K) (times int64, due bool) {
	c := l.seen[kind]
	if c == nil {
		c = &counted{}
		if l.seen == nil {
			l.seen = make(map[K]*counted)
		}
		l.seen[kind] = c
	}
	c.times++
	return c.times, c.time.IsZero() || time.Since(c.time) >= l.Quiet
}

// Pass records that an event of this kind passes. For the duration Quiet, further ones are only
// counted.
func (l *Limit[K]) Pass(kind K) { *l.seen[kind] = counted{time: time.Now()} }

// Guarded returns a logger that writes to the handler of to. A panic of that handler, which
// belongs to the user, loses only the record. A record about a panic of other code of the user
// gets the fields "panic" and "stack": see Panic.
func Guarded(to *slog.Logger) *slog.Logger { return GuardedFunc(to, func() {}) }

// GuardedFunc is like Guarded, and calls panicked after each panic of the handler.
func GuardedFunc(to *slog.Logger, panicked func()) *slog.Logger {
	return slog.New(guarded{to.Handler(), panicked})
}

type guarded struct {
	to       slog.Handler
	panicked func()
}

// recover ends a panic of the handler. It must be deferred.
func (g guarded) recover() {
	if recover() != nil {
		g.panicked()
	}
}

func (g guarded) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer g.recover()
	return g.to.Enabled(ctx, level)
}

func (g guarded) Handle(ctx context.Context, r slog.Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			g.panicked()
			err = fmt.Errorf("the handler panicked with a %T", p)
		}
	}()
	return g.to.Handle(ctx, withPanic(r))
}

func (g guarded) WithAttrs(attrs []slog.Attr) (h slog.Handler) {
	h = g // the result if WithAttrs panics
	defer g.recover()
	return guarded{g.to.WithAttrs(attrs), g.panicked}
}

func (g guarded) WithGroup(name string) (h slog.Handler) {
	h = g
	defer g.recover()
	return guarded{g.to.WithGroup(name), g.panicked}
}
