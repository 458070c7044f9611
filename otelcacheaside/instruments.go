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

// scope is what meters and tracers are asked for by.
const scope = "github.com/cacheaside/cacheaside/otelcacheaside"

// Options are the settings of Instruments. The zero value, and nil, are good defaults.
type Options struct {
	// Name tells Instruments of one process apart: it is the attribute cacheaside.cache of all
	// metrics and spans. Default: no such attribute. Set it if a process has several caches.
	Name string

	// MeterProvider and TracerProvider are what metrics and spans go to. Default: the global ones
	// of package otel, which do nothing until they are set. For no metrics, or no spans, pass those
	// of go.opentelemetry.io/otel/metric/noop or trace/noop.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Instruments are the metrics and spans of one Cache, and of what works beside it. They are an
// Observer of package cacheaside, and of package lock. They are safe for concurrent use.
type Instruments struct {
	meter    metric.Meter
	tracer   trace.Tracer
	name     []attribute.KeyValue // of the cache; none, or one
	duration metric.Float64Histogram
	sets     sync.Map // of attributes, by labels

	mu            sync.Mutex
	named         map[string]bool // what is registered, by kind and name
	registrations []metric.Registration
	closed        bool
}

var (
	_ cacheaside.Observer = (*Instruments)(nil)
	_ lock.Observer       = (*Instruments)(nil)
)

// buckets are the limits of durations, in seconds: from a hit in Redis to a load that is at its
// end.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// New makes Instruments. nil options are the defaults. Close them at the end.
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
	i := &Instruments{meter: o.MeterProvider.Meter(scope), tracer: o.TracerProvider.Tracer(scope), named: make(map[string]bool)}
	if o.Name != "" {
		i.name = []attribute.KeyValue{attribute.String("cacheaside.cache", o.Name)}
	}
	var err error
	i.duration, err = i.meter.Float64Histogram("cacheaside.operation.duration", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(buckets...),
		metric.WithDescription("How long operations take, by what they are and by why they failed; not what memory has answered."))
	if err != nil {
		return nil, fmt.Errorf("otelcacheaside: %w", err)
	}
	return i, nil
}

// labels are what a duration is recorded under. There are few of them: operations, loaders that the
// process has made, kinds of errors.
type labels struct{ op, of, failure string }

// Begin is for the library, which calls Observers.
func (i *Instruments) Begin(ctx context.Context, op, of string, keys int) (own context.Context, end func(error)) {
	began := time.Now()
	own, span := i.tracer.Start(ctx, "cacheaside "+op)
	if span.IsRecording() {
		span.SetAttributes(i.with(op, of)...)
		span.SetAttributes(attribute.Int("cacheaside.keys", keys))
	}
	return own, func(err error) {
		failure := failureOf(err)
		i.duration.Record(own, time.Since(began).Seconds(), metric.WithAttributeSet(i.set(labels{op, of, failure})))
		if failure != "" && span.IsRecording() {
			span.SetAttributes(attribute.String("error.type", failure))
			if failure != notFound {
				span.SetStatus(codes.Error, failure) // not the text of the error, which may hold what is private
			}
		}
		span.End()
	}
}

func (i *Instruments) with(op, of string) []attribute.KeyValue {
	subject := attribute.String("cacheaside.loader", of)
	if op == lock.OpWait || op == lock.OpHold {
		subject = attribute.String("cacheaside.locker", of)
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

// notFound is the error.type of what is no failure: the row does not exist.
const notFound = "not_found"

// failures are the values of error.type, the first that fits.
var failures = []struct {
	is   error
	name string
}{
	{cacheaside.ErrNotFound, notFound},
	{cacheaside.ErrUnavailable, "unavailable"},
	{cacheaside.ErrLoadTimeout, "load_timeout"},
	{cacheaside.ErrLoadFailed, "load_failed"},
	{cacheaside.ErrHoldLost, "hold_lost"},
	{cacheaside.ErrRedis, "redis"},
	{cacheaside.ErrClosed, "closed"},
	{lock.ErrHeld, "held"},
	{lock.ErrLost, "lost"},
	{lock.ErrClosed, "closed"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "deadline_exceeded"},
}

// failureOf is what kind of error it is, "" for none. Any other kind is _OTHER, as the semantic
// conventions have it.
func failureOf(err error) (name string) {
	if err == nil {
		return ""
	}
	defer func() {
		if recover() != nil { // the error's own methods
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

// Close ends the collection of counts. Observations afterwards are still recorded. Close may be
// called again.
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

// claim notes that something of this kind and name is registered. Two of one name would be one
// series.
func (i *Instruments) claim(kind, name string, of any) error {
	if v := reflect.ValueOf(of); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
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
