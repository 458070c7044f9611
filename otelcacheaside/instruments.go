package otelcacheaside

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/lock"
)

// scope is the name of the meter and the tracer.
const scope = "github.com/cacheaside/cacheaside/otelcacheaside"

// Options are the settings of Instruments. The zero value of a field means its default, and nil
// Options mean all defaults.
type Options struct {
	// Name distinguishes several Instruments of a process. It is the attribute cacheaside.cache
	// of all metrics and spans. Set it if a process has several caches. Default: no such
	// attribute.
	Name string

	// MeterProvider and TracerProvider receive the metrics and spans. Default: the global ones of
	// package otel, which do nothing until they are set. For no metrics or no spans, pass those
	// of go.opentelemetry.io/otel/metric/noop or trace/noop.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Instruments are the metrics and spans of one Cache, and of the filters, writers, relays,
// consumers and meters that are used with it. They implement the Observer of package cacheaside
// and the one of package lock. They are safe for concurrent use.
type Instruments struct {
	meter    metric.Meter
	tracer   trace.Tracer
	name     []attribute.KeyValue // the attribute for Options.Name; empty without a name
	duration metric.Float64Histogram
	sets     sync.Map // sets of attributes, by labels

	mu            sync.Mutex
	named         map[string]bool // registered kinds and names
	registrations []metric.Registration
	closed        bool
}

var (
	_ cacheaside.Observer = (*Instruments)(nil)
	_ lock.Observer       = (*Instruments)(nil)
)

// buckets are the boundaries of durations in seconds, from a hit in Redis to a load that reaches
// its timeout.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// New returns new Instruments. Nil options mean the defaults. The caller closes them.
func New(options *Options) (*Instruments, error) {
	var o Options
	if options != nil {
		o = *options
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	i := &Instruments{meter: o.MeterProvider.Meter(scope), tracer: o.TracerProvider.Tracer(scope),
		named: make(map[string]bool)}
	if o.Name != "" {
		i.name = []attribute.KeyValue{attribute.String("cacheaside.cache", o.Name)}
	}
	var err error
	i.duration, err = i.meter.Float64Histogram("cacheaside.operation.duration", metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(buckets...),
		metric.WithDescription("Duration of operations, by operation and kind of error. Hits in memory are not "+
			"included."))
	if err != nil {
		return nil, fmt.Errorf("otelcacheaside: %w", err)
	}
	return i, nil
}

// labels identify the series of a duration. Their number is bounded by the operations, the
// loaders that the process has made, and the kinds of errors.
type labels struct{ op, of, failure string }

// Begin implements the Observer of packages cacheaside and lock. Only these packages call it.
func (i *Instruments) Begin(ctx context.Context, op, name string, keys int) (spanned context.Context, end func(error)) {
	began := time.Now()
	spanned, span := i.tracer.Start(ctx, "cacheaside "+op)
	if span.IsRecording() {
		span.SetAttributes(i.with(op, name)...)
		span.SetAttributes(attribute.Int("cacheaside.keys", keys))
	}
	return spanned, func(err error) {
		failure := failureOf(err)
		i.duration.Record(spanned, time.Since(began).Seconds(),
			metric.WithAttributeSet(i.set(labels{op, name, failure})))
		if failure != "" && span.IsRecording() {
			span.SetAttributes(attribute.String("error.type", failure))
			if failure != notFound {
				span.SetStatus(codes.Error, failure) // not the text of the error, which may contain private data
			}
		}
		span.End()
	}
}

func (i *Instruments) with(op, name string) []attribute.KeyValue {
	subject := attribute.String("cacheaside.loader", name)
	if op == lock.OpWait || op == lock.OpHold {
		subject = attribute.String("cacheaside.locker", name)
	}
	return append([]attribute.KeyValue{attribute.String("cacheaside.operation", op), subject}, i.name...)
}

func (i *Instruments) set(l labels) attribute.Set {
	if set, ok := i.sets.Load(l); ok {
		return set.(attribute.Set)
	}
	with := i.with(l.op, l.of)
	if l.failure != "" {
		with = append(with, attribute.String("error.type", l.failure))
	}
	set := attribute.NewSet(with...)
	i.sets.Store(l, set)
	return set
}

// notFound is the error.type of a row that does not exist, which is not a failure.
const notFound = "not_found"

// failures are the values of error.type. The first one that matches is used.
var failures = []struct {
	is   error
	name string
}{
	{cacheaside.ErrNotFound, notFound},
	{cacheaside.ErrUnavailable, "unavailable"},
	{cacheaside.ErrLoadTimeout, "load_timeout"},
	{cacheaside.ErrLoadFailed, "load_failed"},
	{cacheaside.ErrBadKey, "bad_key"},
	{cacheaside.ErrHoldLost, "hold_lost"},
	{cacheaside.ErrRedis, "redis"},
	{cacheaside.ErrClosed, "closed"},
	{lock.ErrHeld, "held"},
	{lock.ErrLost, "lost"},
	{lock.ErrClosed, "closed"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "deadline_exceeded"},
}

// failureOf returns the error.type of err, or "" if err is nil. Unknown errors are _OTHER,
// according to the semantic conventions.
func failureOf(err error) (name string) {
	if err == nil {
		return ""
	}
	defer func() {
		if recover() != nil { // a method of the error has panicked
			name = "_OTHER"
		}
	}()
	if _, panicked := errors.AsType[*cacheaside.PanicError](err); panicked {
		return "panic"
	}
	for _, f := range failures {
		if errors.Is(err, f.is) {
			return f.name
		}
	}
	return "_OTHER"
}

// Close stops the collection of counts. Operations after that are still recorded. Close may be
// called more than once.
func (i *Instruments) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	errs := make([]error, len(i.registrations))
	for n, r := range i.registrations {
		errs[n] = r.Unregister()
	}
	i.registrations = nil
	return errors.Join(errs...)
}

// claim registers a kind and name. It returns an error if it is registered already, because both
// would be one series.
func (i *Instruments) claim(kind, name string, instrument any) error {
	if v := reflect.ValueOf(instrument); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("otelcacheaside: the %s is nil", kind)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.closed:
		return errors.New("otelcacheaside: the Instruments are closed")
	case i.named[kind+" "+name]:
		return fmt.Errorf("otelcacheaside: there is a %s %q already", kind, name)
	}
	i.named[kind+" "+name] = true
	return nil
}
