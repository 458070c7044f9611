package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/cacheaside/cacheaside/otelcacheaside"
	"github.com/cacheaside/cacheaside/stack"
)

// metrics are those of the cache, the writer and the consumer, for Prometheus.
type metrics struct {
	*otelcacheaside.Instruments
	http.Handler
}

func newMetrics() (*metrics, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, err
	}
	instruments, err := otelcacheaside.New(&otelcacheaside.Options{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(exporter)),
	})
	return &metrics{instruments, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}, err
}

// watch exports the counts of the parts.
func (m *metrics) watch(s *stack.Stack) error {
	if err := m.Cache(s.Cache); err != nil {
		return err
	}
	if err := m.Writer("users", s.Writer); err != nil || s.Consumer == nil {
		return err
	}
	return m.Consumer("log", s.Consumer)
}
