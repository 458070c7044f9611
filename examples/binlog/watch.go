package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// patience is how long the program waits for the caches to follow.
const patience = time.Minute

// seen reports whether a catalog shows a change.
type seen func(ctx context.Context, c catalog) (bool, error)

// watch calls act, and returns how long each process took to show the change. The time starts when
// another session can read the change in the database, or with the call of act if that is later.
func watch(
	ctx context.Context, db catalog, fleet []*process, act func(context.Context) error, is seen,
) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the caches do not follow within %v", patience))
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	first := func(c catalog, moment *time.Time) {
		g.Go(func() error {
			for {
				ok, err := is(ctx, c)
				if err != nil || ok {
					*moment = time.Now()
					return err
				}
				if err := sleep(ctx, 200*time.Microsecond); err != nil {
					return err
				}
			}
		})
	}
	began := time.Now()
	var written time.Time
	moment := make([]time.Time, len(fleet))
	first(db, &written)
	for i, p := range fleet {
		first(p, &moment[i])
	}
	g.Go(func() error { return act(ctx) })
	if err := g.Wait(); err != nil {
		if cause := context.Cause(ctx); cause != nil { // more specific than the error of the operation
			return nil, cause
		}
		return nil, err
	}
	if written.Before(began) {
		written = began
	}
	took := make([]time.Duration, len(fleet))
	for i := range took {
		took[i] = max(moment[i].Sub(written), 0)
	}
	return took, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// after formats durations, for example as "2.1, 2.4 and 103 ms".
func after(took []time.Duration) string {
	var parts []string
	for _, d := range took {
		ms, digits := float64(d)/float64(time.Millisecond), 1
		if ms >= 100 {
			digits = 0
		}
		parts = append(parts, strconv.FormatFloat(ms, 'f', digits, 64))
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1] + " ms"
}

// Conditions for watch.

func priced(id int64, price string) seen {
	return func(ctx context.Context, c catalog) (bool, error) {
		p, err := c.product(ctx, id)
		if missing(err) {
			return false, nil
		}
		return p.Price == price, err
	}
}

func named(sku string, id int64) seen {
	return func(ctx context.Context, c catalog) (bool, error) {
		got, err := c.idOf(ctx, sku)
		if missing(err) {
			return id == 0, nil
		}
		return got == id, err
	}
}

func all(each ...seen) seen {
	return func(ctx context.Context, c catalog) (bool, error) {
		for _, is := range each {
			if ok, err := is(ctx, c); !ok || err != nil {
				return false, err
			}
		}
		return true, nil
	}
}
