package otelcacheaside

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/meter"
)

// measure describes a metric that is read from a Stats.
type measure[S any] struct {
	name  string // without the prefix "cacheaside."
	unit  string
	about string
	gauge bool // the value may decrease
	with  []attribute.KeyValue
	of    func(*S) float64
}

// reading is a Stats with the attributes that identify it.
type reading[S any] struct {
	stats *S
	with  []attribute.KeyValue
}

// register registers measures with the meter. At each collection read returns the values.
func register[S any](
	i *Instruments, kind string, measures []measure[S], read func(context.Context) ([]reading[S], error),
) error {
	all := make([]metric.Float64Observable, len(measures))
	for n, m := range measures {
		var err error
		about, unit := metric.WithDescription(m.about), metric.WithUnit(m.unit)
		if m.gauge {
			all[n], err = i.meter.Float64ObservableGauge("cacheaside."+m.name, about, unit)
		} else {
			all[n], err = i.meter.Float64ObservableCounter("cacheaside."+m.name, about, unit)
		}
		if err != nil {
			return fmt.Errorf("otelcacheaside: %s: %w", kind, err)
		}
	}
	instruments := make([]metric.Observable, len(all))
	for n, o := range all {
		instruments[n] = o
	}
	r, err := i.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		readings, err := read(ctx)
		for _, r := range readings {
			for n, m := range measures {
				o.ObserveFloat64(all[n], m.of(r.stats), metric.WithAttributes(slices.Concat(i.name, r.with, m.with)...))
			}
		}
		return err
	}, instruments...)
	if err != nil {
		return fmt.Errorf("otelcacheaside: %s: %w", kind, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return errors.Join(errors.New("otelcacheaside: the Instruments are closed"), r.Unregister())
	}
	i.registrations = append(i.registrations, r)
	return nil
}

func one[S any](stats func() S, with ...attribute.KeyValue) func(context.Context) ([]reading[S], error) {
	return func(context.Context) ([]reading[S], error) {
		s := stats()
		return []reading[S]{{&s, with}}, nil
	}
}

// Cache registers the metrics of a Cache: those of each of its loaders, including loaders that
// are made later, and those of the whole cache. Call it once.
func (i *Instruments) Cache(c *cacheaside.Cache) error {
	if err := i.claim("Cache", "", c); err != nil {
		return err
	}
	err := register(i, "Cache", loaderMeasures, func(context.Context) ([]reading[cacheaside.Stats], error) {
		var all []reading[cacheaside.Stats]
		for name, s := range c.StatsByLoader() {
			all = append(all, reading[cacheaside.Stats]{&s,
				[]attribute.KeyValue{attribute.String("cacheaside.loader", name)}})
		}
		return all, nil
	})
	return errors.Join(err, register(i, "Cache", cacheMeasures, one(c.Stats)))
}

// Filter registers the metrics of a Bloom filter under this name: a *bloom.Local, *bloom.Redis or
// *bloom.Replica.
func (i *Instruments) Filter(name string, f interface{ Stats() bloom.Stats }) error {
	if err := i.claim("Filter", name, f); err != nil {
		return err
	}
	return register(i, "Filter", filterMeasures, one(f.Stats, attribute.String("cacheaside.filter", name)))
}

// Writer registers the metrics of a Writer and its Relay under this name. They include the
// Writers for other levels that its method At returns.
func (i *Instruments) Writer(name string, w *consistency.Writer) error {
	if err := i.claim("Writer", name, w); err != nil {
		return err
	}
	err := register(i, "Writer", writerMeasures, one(w.Stats, attribute.String("cacheaside.writer", name)))
	return errors.Join(err, i.Relay(name, relayOf{w}))
}

// relayOf reads the Stats of the Relay of a Writer.
type relayOf struct{ *consistency.Writer }

func (r relayOf) Stats() consistency.RelayStats { return r.Writer.Stats().Relay }

// Relay registers the metrics of a *consistency.Relay that runs without a Writer, under this
// name.
func (i *Instruments) Relay(name string, r interface{ Stats() consistency.RelayStats }) error {
	if err := i.claim("Relay", name, r); err != nil {
		return err
	}
	return register(i, "Relay", relayMeasures, one(r.Stats, attribute.String("cacheaside.relay", name)))
}

// Consumer registers the metrics of a Consumer of the binary log, under this name.
func (i *Instruments) Consumer(name string, c *canal.Consumer) error {
	if err := i.claim("Consumer", name, c); err != nil {
		return err
	}
	return register(i, "Consumer", consumerMeasures, one(c.Stats, attribute.String("cacheaside.consumer", name)))
}

// Meter registers the metrics of a Meter under this name, with the consistency of the copies for
// each of its times after the writes (attribute cacheaside.after, in seconds).
func (i *Instruments) Meter(name string, m *meter.Meter) error {
	if err := i.claim("Meter", name, m); err != nil {
		return err
	}
	with := attribute.String("cacheaside.meter", name)
	after := func(d time.Duration) []attribute.KeyValue {
		return []attribute.KeyValue{with, attribute.Float64("cacheaside.after", d.Seconds())}
	}
	return errors.Join(
		register(i, "Meter", meterMeasures, one(m.Stats, with)),
		register(i, "Meter", resultMeasures, func(context.Context) (all []reading[meter.Result], _ error) {
			for _, look := range m.Stats().Results {
				all = append(all, reading[meter.Result]{&look, after(look.After)})
			}
			return all, nil
		}),
		register(i, "Meter", consistencyMeasures, func(context.Context) (all []reading[meter.Consistency], _ error) {
			for _, look := range m.Stats().Results {
				if c, ok := m.Consistency(look.After); ok {
					all = append(all, reading[meter.Consistency]{&c, after(look.After)})
				}
			}
			return all, nil
		}))
}
