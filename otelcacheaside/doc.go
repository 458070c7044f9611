// Package otelcacheaside provides OpenTelemetry metrics and spans of the operations of package
// cacheaside.
//
//	see, err := otelcacheaside.New(nil) // uses the global providers
//	cache, err := cacheaside.New(rdb, &cacheaside.Options{Observer: see})
//	err = see.Cache(cache)
//	defer see.Close()
//
// Counts are read from Stats when metrics are collected, so they cost the caches nothing.
// Durations and spans cover operations that memory cannot serve: a hit in memory is counted, but
// has no span and no duration.
//
// Attributes contain the names of loaders that the process has made, the names that are passed to
// this package, and constants. They never contain a key, a value or the text of an error.
// docs/guides/metrics.md lists all metrics, and a dashboard for Grafana is in the directory of
// this package.
//
// The package is a separate module, so that the library does not depend on OpenTelemetry.
package otelcacheaside
