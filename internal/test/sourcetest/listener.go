package sourcetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A Listener runs a Source and records what it delivers.
type Listener struct {
	*World
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned err and batches is complete
	err  error
	news chan struct{} // receives a value when batches has grown

	mu      sync.Mutex
	batches []event.Batch
}

// Listen runs s until the test ends. It returns when the first batch was delivered.
func (w *World) Listen(s canal.Source, need event.Need) *Listener {
	w.Helper()
	l := w.Start(s, need)
	l.Until("it begins", func() bool { return len(l.Batches()) > 0 })
	return l
}

// Start runs s until the test ends.
func (w *World) Start(s canal.Source, need event.Need) *Listener {
	ctx, stop := context.WithCancel(context.Background())
	l := &Listener{World: w, stop: stop, done: make(chan struct{}), news: make(chan struct{}, 1)}
	batches := make(chan event.Batch)
	go func() {
		defer close(batches)
		l.err = s.Run(ctx, need, batches)
	}()
	go func() {
		defer close(l.done)
		for b := range batches {
			l.mu.Lock()
			l.batches = append(l.batches, b)
			l.mu.Unlock()
			select {
			case l.news <- struct{}{}:
			default:
			}
		}
	}()
	w.Cleanup(func() { _ = l.Stop() })
	return l
}

// Stop ends Run and returns its error.
func (l *Listener) Stop() error {
	l.Helper()
	l.stop()
	return l.Ended()
}

// Ended waits until Run has returned, and returns its error.
func (l *Listener) Ended() error {
	l.Helper()
	testenv.Receive(l, "Run ends", l.done)
	return l.err
}

// Until waits until is returns true. It calls is after each batch.
func (l *Listener) Until(event string, is func() bool) {
	l.Helper()
	for limit := time.After(testenv.Hang); !is(); {
		select {
		case <-l.news:
		case <-l.done:
			if !is() {
				l.Fatalf("%s: Run has ended: %v", event, l.err)
			}
			return
		case <-limit:
			all := l.All()
			l.Fatalf("hung, waited for %s; %d changes, first %v", event, len(all), all[:min(len(all), 20)])
		}
	}
}

// Batches returns the batches so far.
func (l *Listener) Batches() []event.Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.batches
}

// All returns the changes so far.
func (l *Listener) All() (all []event.Change) {
	for _, b := range l.Batches() {
		all = append(all, b.Changes...)
	}
	return all
}

// Count returns the number of changes so far.
func (l *Listener) Count() (n int) {
	for _, b := range l.Batches() {
		n += len(b.Changes)
	}
	return n
}

// Changes waits for n changes, and returns all changes so far.
func (l *Listener) Changes(n int) []event.Change {
	l.Helper()
	l.Until(fmt.Sprint(n, " changes"), func() bool { return l.Count() >= n })
	return l.All()
}

// Positions returns the positions so far.
func (l *Listener) Positions() (all []event.Position) {
	for _, b := range l.Batches() {
		if b.Position != "" {
			all = append(all, b.Position)
		}
	}
	return all
}

// Texts returns the texts of the changes so far.
func (l *Listener) Texts() (all []string) {
	for _, c := range l.All() {
		all = append(all, l.Text(c))
	}
	return all
}

// Want waits for as many changes as there are texts, and fails unless the changes are these.
func (l *Listener) Want(want ...string) {
	l.Helper()
	l.Changes(len(want))
	if got := l.Texts(); !slices.Equal(got, want) {
		l.Fatalf("got\n%q\nwant\n%q", got, want)
	}
}
