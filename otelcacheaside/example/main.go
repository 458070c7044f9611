// Command example serves the metrics of a busy cache to Prometheus.
//
//	go -C otelcacheaside run ./example
//
// It reads and writes rows through a cache on an embedded Redis, and makes the database and Redis
// fail from time to time. Point a Prometheus at 127.0.0.1:9464, and load dashboard.json into
// Grafana.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/otelcacheaside"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:9464", "where to serve /metrics")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *addr)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()

	registry := prometheus.NewRegistry()
	export, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return err
	}
	provider := metric.NewMeterProvider(metric.WithReader(export))
	defer provider.Shutdown(context.Background()) //nolint:errcheck // it ends here

	see, err := otelcacheaside.New(&otelcacheaside.Options{MeterProvider: provider})
	if err != nil {
		return err
	}
	defer see.Close() //nolint:errcheck // it ends here
	cache, err := cacheaside.New(rdb, &cacheaside.Options{Observer: see})
	if err != nil {
		return err
	}
	defer cache.Close()
	if err := see.Cache(cache); err != nil {
		return err
	}

	var broken atomic.Bool
	users, err := cacheaside.NewLoader(cache, "user", func(_ context.Context, id int) (string, error) {
		time.Sleep(time.Duration(5+rand.IntN(20)) * time.Millisecond)
		switch {
		case broken.Load():
			return "", errors.New("the database is away")
		case id%10 == 9:
			return "", cacheaside.ErrNotFound
		}
		return fmt.Sprint("user ", id), nil
	}, &cacheaside.LoaderOptions{TTL: 20 * time.Second})
	if err != nil {
		return err
	}
	go trouble(ctx, server, &broken)
	go use(ctx, users)

	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	page := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { <-ctx.Done(); page.Close() }() //nolint:errcheck // it ends here
	fmt.Printf("http://%s/metrics\n", addr)
	if err := page.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// trouble breaks something for five seconds of each half minute.
func trouble(ctx context.Context, server *miniredis.Miniredis, broken *atomic.Bool) {
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(25 * time.Second):
		}
		if n%2 == 0 {
			broken.Store(true)
		} else {
			server.SetError("LOADING")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Second):
		}
		broken.Store(false)
		server.SetError("")
	}
}

// use reads some hundred rows a second, and writes a few.
func use(ctx context.Context, users *cacheaside.Loader[int, string]) {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 5, 5000)
	for n := 0; ctx.Err() == nil; n++ {
		id := int(zipf.Uint64())
		go users.Get(ctx, id) //nolint:errcheck // its failures are to be seen in the metrics
		if n%50 == 0 {
			go users.Invalidate(ctx, id) //nolint:errcheck // likewise
		}
		time.Sleep(2 * time.Millisecond)
	}
}
