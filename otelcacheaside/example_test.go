package otelcacheaside_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/otelcacheaside"
)

// Metrics of a Cache. A program has an exporter instead of the reader.
func ExampleNew() {
	ctx := context.Background()
	reader := metric.NewManualReader()
	instruments, err := otelcacheaside.New(&otelcacheaside.Options{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer instruments.Close()
	cache, err := cacheaside.NewLocal(&cacheaside.Options{Observer: instruments}) // durations and spans
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	if err := instruments.Cache(cache); err != nil { // counts
		log.Fatal(err)
	}
	users, err := cacheaside.NewLoader(cache, "user", func(context.Context, int64) (string, error) {
		return "Ann", nil
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(users.Get(ctx, 42))

	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[float64]); ok && m.Name == "cacheaside.loads" {
			fmt.Println(m.Name, sum.DataPoints[0].Value)
		}
	}
	// Output:
	// Ann <nil>
	// cacheaside.loads 1
}
