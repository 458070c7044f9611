package fetch

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// moments are the items of a loader of one key that does something when its hash is asked for.
type moments struct {
	Items
	asked func()
	ago   time.Duration // since the end of its TTL
}

func (m moments) Hash(*Round) uint64 {
	m.asked()
	return 1
}

func (m moments) Past(*Round) (Item, time.Duration, bool) { return Item{}, m.ago, true }

// refresher makes a fetcher without Redis of one key, which is being reloaded.
func refresher(asked func(l *Fetcher)) *Fetcher {
	l := &Fetcher{cache: &Shared{}, Options: Options{
		Chunk: 1, Source: source.New(source.Options{}), Counters: new(Counters),
	}}
	l.Items = moments{asked: func() { asked(l) }}
	l.refreshes.enter([]uint64{1})
	return l
}

// A reload that ends between a caller's look and its question whether one is under way is not one
// that could not begin: there is a fresh value.
func TestReloadEndsAfterTheLook(t *testing.T) {
	asked := 0
	l := refresher(func(l *Fetcher) {
		if asked++; asked == 2 { // it has been tried to begin another
			l.refreshes.leave([]uint64{1})
		}
	})
	r := &Round{step: toWait, wait: wait{forFresh: true}, refresh: refresh{renew: true}}
	l.refreshDue([]*Round{r})
	if r.step != toWait || asked < 2 {
		t.Errorf("it is given the stale value: step %d, asked %d times", r.step, asked)
	}
}

// Nobody waits for the reload of a key that rests.
func TestRestingKeyIsNotWaitedFor(t *testing.T) {
	l := refresher(func(*Fetcher) {})
	l.refreshes.rest([]uint64{1})
	r := &Round{step: toWait, wait: wait{forFresh: true}, refresh: refresh{renew: true}}
	l.refreshDue([]*Round{r})
	if r.step != over {
		t.Error("it is waited for")
	}
}

// What has been loaded does not rest while its flight is on: else a caller that has looked before
// it was stored would be given the stale value.
func TestLoadedKeysDoNotRest(t *testing.T) {
	for _, c := range []struct {
		what  string
		round Round
		rests bool
	}{
		{"loaded", Round{}, false},
		{"failed", Round{Result: Result{Err: errors.New("no")}}, true},
		{"refused", Round{ending: ending{notAttempted: true}}, true},
	} {
		l := refresher(func(*Fetcher) {})
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // so that it does not pause
		b := &batch{l: l, ctx: ctx, rounds: []*Round{&c.round}, background: true}
		b.rest()
		if l.refreshes.active(1) == c.rests {
			t.Errorf("%s: rests is %v", c.what, !c.rests)
		}
	}
}

// Where one key of a flight was refused, those that would be refused, too, rest with it.
func TestRefusedFlightRests(t *testing.T) {
	l := refresher(func(*Fetcher) {})
	refused, next := &Round{step: completed, ending: ending{notAttempted: true}}, &Round{step: toLoad}
	ctx, cancel := context.WithCancel(t.Context())
	b := &batch{l: l, ctx: ctx, rounds: []*Round{refused, next}, open: []*Round{next}, background: true}
	if b.more() || !next.notAttempted {
		t.Fatalf("it goes on: step %d", next.step)
	}
	cancel() // so that it does not pause
	b.rounds = []*Round{next}
	b.rest()
	if l.refreshes.active(1) {
		t.Error("it does not rest")
	}
}

// Without Redis there is no second check under a lease: what was loaded between a caller's look and
// the beginning of its reload is seen by another look.
func TestReloadedSinceTheLook(t *testing.T) {
	for _, c := range []struct {
		ago     time.Duration
		early   bool
		reloads int64
	}{{-time.Second, false, 0}, {-time.Second, true, 1}, {time.Second, false, 1}} {
		life, end := context.WithCancel(t.Context())
		end() // so that nothing is loaded
		l := &Fetcher{cache: &Shared{
			Observe: func(ctx context.Context, _, _ string, _ int) (context.Context, func(error)) {
				return ctx, func(error) {}
			},
		}, Options: Options{Chunk: 1, Counters: new(Counters), Life: life, Memory: new(memory.Tier), StaleFor: time.Hour}}
		l.Items = moments{asked: func() {}, ago: c.ago}
		l.startRefreshes([]*Round{{step: toLook, refresh: refresh{early: c.early}}})
		l.refreshes.under.Wait()
		if n := l.Counters.BackgroundRefreshes.Load(); n != c.reloads {
			t.Errorf("its TTL has ended %v ago, early is %v: %d reloads", c.ago, c.early, n)
		}
	}
}
