package fetch

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// items are the items of a loader of one key.
type items struct{ Items }

func (items) Pair(*memory.Header) (key, value any) { return new(int), new(int) }

func (items) Text(any) (string, error) { return "", nil }

// refresher makes a fetcher without Redis of one key, which is being reloaded.
func refresher() *Fetcher {
	l := &Fetcher{cache: &Shared{}, Options: Options{
		Chunk: 1, Source: source.New(source.Options{}), Counters: new(Counters),
	}}
	l.refreshes.enter([]*Round{{}}, 1)
	return l
}

// A caller waits for a reload that another has begun, though it may end at any time: then there is
// a fresh value.
func TestReloadOfAnotherIsWaitedFor(t *testing.T) {
	l := refresher()
	r := &Round{step: toWait, wait: wait{forFresh: true}, refresh: refresh{due: true}}
	l.startDueRefreshes([]*Round{r})
	if r.step != toWait {
		t.Errorf("it is given the stale value: step %d", r.step)
	}
	entered, reloading := l.refreshes.enter([]*Round{r}, 1)
	if len(entered) > 0 || len(reloading) != 1 {
		t.Errorf("%d have entered, %d are being reloaded", len(entered), len(reloading))
	}
}

// No read waits for the reload of a key that rests.
func TestRestingKeyIsNotWaitedFor(t *testing.T) {
	l := refresher()
	l.refreshes.pause([]*Round{{}})
	r := &Round{step: toWait, wait: wait{forFresh: true}, refresh: refresh{due: true}}
	l.startDueRefreshes([]*Round{r})
	if r.step != ended {
		t.Error("it is waited for")
	}
}

// What has been loaded does not rest while its flight is on: else a caller that has looked before
// it was stored would be given the stale value.
func TestLoadedKeysAreNotPausedDuringTheirFlight(t *testing.T) {
	for _, c := range []struct {
		step  string
		round Round
		rests bool
	}{
		{"loaded", Round{}, false},
		{"failed", Round{Result: Result{Err: errors.New("no")}}, true},
		{"refused", Round{ending: ending{notAttempted: true}}, true},
	} {
		l := refresher()
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // so that it does not pause
		b := &batch{fetcher: l, ctx: ctx, rounds: []*Round{&c.round}, background: true}
		b.pauseRefused()
		if l.refreshes.active(0) == c.rests {
			t.Errorf("%s: rests is %v", c.step, !c.rests)
		}
	}
}

// Where one key of a flight was refused, those that would be refused, too, rest with it.
func TestRefusedFlightRests(t *testing.T) {
	l := refresher()
	refused, next := &Round{step: completed, ending: ending{notAttempted: true}}, &Round{step: toLoad}
	ctx, cancel := context.WithCancel(t.Context())
	b := &batch{fetcher: l, ctx: ctx, rounds: []*Round{refused, next}, open: []*Round{next}, background: true}
	if b.more() || !next.notAttempted {
		t.Fatalf("it continues: step %d", next.step)
	}
	cancel() // so that it does not pause
	b.rounds = []*Round{next}
	b.pauseRefused()
	if l.refreshes.active(0) {
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
	}{{-time.Hour, false, 0}, {-time.Hour, true, 1}, {1, false, 1}} {
		life, end := context.WithCancel(t.Context())
		end() // so that nothing is loaded
		l := &Fetcher{cache: &Shared{
			Observe: func(ctx context.Context, _, _ string, _ int) (context.Context, func(error)) {
				return ctx, func(error) {}
			},
		}, Options: Options{Chunk: 1, Counters: new(Counters), Life: life, StaleFor: time.Hour, Items: items{},
			Generations: new(memory.Generations)}}
		var err error
		if l.Memory, err = memory.New(1 << 20); err != nil {
			t.Fatal(err)
		}
		defer l.Memory.Close()
		l.Memory.Set(0, (&memory.Item[int, int]{}).Whole(), memory.Read{}, 8, time.Hour, -c.ago)
		l.startRefreshes([]*Round{{step: toLookUp, refresh: refresh{early: c.early}}})
		l.refreshes.running.Wait()
		if n := l.Counters.BackgroundRefreshes.Load(); n != c.reloads {
			t.Errorf("its TTL has ended %v ago, early is %v: %d reloads", c.ago, c.early, n)
		}
	}
}
