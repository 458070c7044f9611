package cacheaside_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside"
)

// The limits of a Cache keep a cold or lost cache from overloading the database. Excess loads wait
// in a queue, and fail immediately when the queue is full.
func ExampleOptions_limits() {
	cache, _ := cacheaside.NewLocal(&cacheaside.Options{
		MaxLoads: 1,  // concurrent loads in this process; by default 100
		MaxQueue: -1, // no queue; by default ten times MaxLoads
	})
	defer cache.Close()
	began, finish := make(chan struct{}), make(chan struct{})
	reports, _ := cacheaside.NewLoader(cache, "report", func(_ context.Context, year int) (string, error) {
		if year == 2024 { // a slow query
			close(began)
			<-finish
		}
		return fmt.Sprint("report of ", year), nil
	}, nil)

	ctx := context.Background()
	done := make(chan struct{})
	go func() {
		defer close(done)
		report, err := reports.Get(ctx, 2024)
		fmt.Println(report, err)
	}()
	<-began
	_, err := reports.Get(ctx, 2025)
	fmt.Println(errors.Is(err, cacheaside.ErrUnavailable), cache.Stats().Unavailable)
	close(finish)
	<-done
	// That was not a failure of the row: the next caller may try immediately.
	report, err := reports.Get(ctx, 2025)
	fmt.Println(report, err)
	// Output:
	// true 1
	// report of 2024 <nil>
	// report of 2025 <nil>
}

// When most loads of a loader fail, its circuit breaker opens, and the database is left alone.
func ExampleLoaderOptions_breaker() {
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	queries := 0
	users, _ := cacheaside.NewLoader(cache, "user", func(context.Context, int) (string, error) {
		queries++
		return "", errors.New("connection refused")
	}, &cacheaside.LoaderOptions{
		BreakAt: 0.5, // of at least 20 loads in 10 s; by default 0.9
		// Then one load tests whether the database is back; by default after a second.
		BreakFor: time.Minute,
	})

	ctx := context.Background()
	for id := range 1000 {
		if _, err := users.Get(ctx, id); errors.Is(err, cacheaside.ErrUnavailable) {
			why, last, _ := strings.Cut(strings.TrimPrefix(errors.Unwrap(err).Error(), "cacheaside: "), "; ")
			fmt.Println(why)
			fmt.Println(last)
			break
		}
	}
	fmt.Println(queries, "queries")
	// Output:
	// no load is admitted now: the circuit breaker is open because most loads have failed
	// the last load that failed: connection refused
	// 20 queries
}
