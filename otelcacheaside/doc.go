// Package otelcacheaside makes OpenTelemetry metrics and spans of what cacheaside does.
//
//	see, err := otelcacheaside.New(nil) // of the global providers
//	cache, err := cacheaside.New(rdb, &cacheaside.Options{Observer: see})
//	err = see.Cache(cache)
//	defer see.Close()
//
// Counts are read from Stats when metrics are collected, so that they cost the caches nothing.
// Durations and spans are of what memory has not answered: a hit in memory is counted, but has no
// span, and no duration.
//
// Labels are the names of loaders that the process has made, the names that are given here, and
// constants: never a key, a value or the text of an error. All are listed in
// docs/guides/metrics.md, with a dashboard for Grafana beside this file.
//
// It is a module of its own, so that the library does not depend on OpenTelemetry.
package otelcacheaside
