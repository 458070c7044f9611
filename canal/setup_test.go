package canal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// refusing is a Source that is not set up while it has a problem.
type refusing struct {
	*told
	mu      sync.Mutex
	problem error
}

func (r *refusing) set(problem error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = problem
}

func (r *refusing) Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error {
	r.mu.Lock()
	problem := r.problem
	r.mu.Unlock()
	if problem != nil {
		return problem
	}
	return r.told.Run(ctx, need, deliver)
}

func notSetUp(text string) error { return fmt.Errorf("%w: %s", ErrSetup, text) }

// TestSetupIsLost: after a Consumer has worked, a setup error does not end it. It raises one alert
// for each text, Health fails, and when the setup is corrected, all keys are invalidated once, and
// the changes from the position are processed.
func TestSetupIsLost(t *testing.T) {
	in(t, func(x *world) {
		gaps := 0
		x.options.OnGap = func(context.Context) error { gaps++; return nil }
		source := &refusing{told: x.source}
		var err error
		x.Consumer, err = NewConsumer(x.cache, source, x.checkpoint, x.bindings, &x.options)
		x.check(err)
		x.begin()
		x.tell("1", insert(row(1, nil)))
		x.alerted()
		x.set(int64(1), "old")
		reads(x, x.users, 1, "old")
		x.set(int64(1), "new")
		source.set(notSetUp("CREATE PUBLICATION a"))
		x.source.in <- notSetUp("CREATE PUBLICATION a")
		time.Sleep(20 * time.Second)
		if got := x.alerted(); !slices.Equal(got, []string{"setup "}) {
			t.Errorf("alerts %q", got)
		}
		if err := x.Health(time.Hour); !errors.Is(err, ErrSetup) ||
			!strings.Contains(err.Error(), "CREATE PUBLICATION a") {
			t.Error(err)
		}
		source.set(notSetUp("ALTER PUBLICATION a"))
		time.Sleep(20 * time.Second)
		if got := x.alerted(); !slices.Equal(got, []string{"setup "}) {
			t.Errorf("alerts after the first statement: %q", got)
		}
		reads(x, x.users, 1, "old")
		source.set(nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		reads(x, x.users, 1, "new")
		x.tell("2", insert(row(2, nil)))
		if need := x.source.needs[x.source.runs()-1]; need.From != "1" || gaps != 0 {
			t.Errorf("continued from %q, with %d calls of OnGap", need.From, gaps)
		}
		if err := x.Health(time.Hour); err != nil {
			t.Error(err)
		}
		x.end()
	})
}

// TestSetupAtTheStart: a setup error ends Run before it has worked, unless Options.RetrySetup is
// set or the Checkpoint shows that a Consumer has worked.
func TestSetupAtTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		at    event.Position
		retry bool
		ends  bool
	}{
		"first":            {ends: true},
		"first, it waits":  {retry: true},
		"with a position":  {at: "1"},
		"with a position,": {at: "1", retry: true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(x *world) {
				x.checkpoint.at, x.options.RetrySetup = c.at, c.retry
				source := &refusing{told: x.source, problem: notSetUp("wal_level")}
				var err error
				x.Consumer, err = NewConsumer(x.cache, source, x.checkpoint, x.bindings, &x.options)
				x.check(err)
				x.begin()
				if c.ends {
					if err := <-x.ended; !errors.Is(err, ErrSetup) {
						t.Error(err)
					}
					x.stop()
					x.stop = nil
					return
				}
				time.Sleep(time.Minute)
				source.set(nil)
				time.Sleep(5 * time.Second)
				x.tell("2", insert(row(1, nil)))
				if s := x.Stats(); s.Position != "2" || x.Health(time.Hour) != nil {
					t.Errorf("%+v, %v", s, x.Health(time.Hour))
				}
				x.end()
			})
		})
	}
}

// TestIncompleteTables: a table that is followed only in part is reported until the Source reports
// that it is complete. Changes of the table do not end that, as they do for a missing one.
func TestIncompleteTables(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		report := func(tables map[event.Table]string) {
			x.source.in <- event.Batch{Incomplete: tables, Time: time.Now()}
			synctest.Wait()
		}
		users := event.Table{Schema: "shop", Name: "users"}
		report(map[event.Table]string{users: "ALTER TABLE users_2 SET LOGGED"})
		x.tell("1", insert(row(1, nil)))
		report(map[event.Table]string{users: "ALTER TABLE users_2 SET LOGGED"})
		if got := x.alerted(); !slices.Contains(got, "incomplete table loader user") || len(got) > 2 {
			t.Errorf("alerts %q", got)
		}
		if err := x.Health(time.Hour); err == nil || !strings.Contains(err.Error(), "SET LOGGED") {
			t.Error(err)
		}
		report(nil)
		if got := x.Stats().MissingTables; len(got) != 2 {
			t.Errorf("incomplete: %q", got)
		}
		report(map[event.Table]string{})
		if err := x.Health(time.Hour); err != nil {
			t.Error(err)
		}
		x.end()
	})
}
