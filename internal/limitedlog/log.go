// Package limitedlog tells of what is rare, and may come in floods. A Logger logs each event once
// in QuietFor at most, with the number of times that it has happened since; a Limit counts for
// others that log by themselves. An Alarm says when to tell of what goes on failing, and that it is
// over.
package limitedlog

import (
	"context"
	"fmt"
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

// Limit lets an event of a kind pass at most once in Quiet, and counts the others. It has no lock:
// its callers hold one of their own.
type Limit[K comparable] struct {
	Quiet time.Duration

	seen map[K]*counted
}

type counted struct {
	at    time.Time // when it passed last
	times int64     // since then
}

// Count counts an event. It returns how often it has happened since one of its kind passed, and
// whether it may pass now: then Pass is for the caller to call.
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
	return c.times, c.at.IsZero() || time.Since(c.at) >= l.Quiet
}

// Pass begins the time in which events of a kind are only counted.
func (l *Limit[K]) Pass(kind K) { *l.seen[kind] = counted{at: time.Now()} }

// Guarded returns a logger that writes to the handler of to. A panic of that handler, which is the
// user's, loses the record, and ends nothing.
func Guarded(to *slog.Logger) *slog.Logger { return slog.New(guarded{to.Handler()}) }

type guarded struct{ to slog.Handler }

func (g guarded) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer func() { _ = recover() }()
	return g.to.Enabled(ctx, level)
}

func (g guarded) Handle(ctx context.Context, r slog.Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked with a %T", p)
		}
	}()
	return g.to.Handle(ctx, r)
}

func (g guarded) WithAttrs(attrs []slog.Attr) (h slog.Handler) {
	h = g // where it panics
	defer func() { _ = recover() }()
	return guarded{g.to.WithAttrs(attrs)}
}

func (g guarded) WithGroup(name string) (h slog.Handler) {
	h = g
	defer func() { _ = recover() }()
	return guarded{g.to.WithGroup(name)}
}
