package otelcacheaside_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/otelcacheaside"
)

// A read is one trace, from the caller's span to those of the database; and no span tells what is
// private.
func TestSpans(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracers := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	see, err := otelcacheaside.New(&otelcacheaside.Options{MeterProvider: noop.NewMeterProvider(),
		TracerProvider: tracers})
	check(t, err)
	defer see.Close()
	_, rdb := testenv.Mini(t)
	cache, err := cacheaside.New(rdb, &cacheaside.Options{Observer: see, RedisTimeout: testenv.Hang,
		ReadTimeout: testenv.Hang})
	check(t, err)
	defer cache.Close()
	tracer := tracers.Tracer("test")
	users, err := cacheaside.NewLoader(cache, "user", func(ctx context.Context, key string) (string, error) {
		_, span := tracer.Start(ctx, "SELECT")
		defer span.End()
		switch key {
		case "secret-broken":
			return "", errors.New("secret-error")
		case "secret-absent":
			return "", cacheaside.ErrNotFound
		}
		return "secret-value", nil
	}, nil)
	check(t, err)
	read := func(key string) []sdk.ReadOnlySpan {
		before := len(recorder.Ended())
		ctx, span := tracer.Start(t.Context(), "request")
		_, _ = users.Get(ctx, key)
		span.End()
		return recorder.Ended()[before:]
	}
	// path is the names of a span and those around it.
	path := func(spans []sdk.ReadOnlySpan, s sdk.ReadOnlySpan) string {
		names := []string{s.Name()}
		for i := 0; i < len(spans); i++ {
			if spans[i].SpanContext().SpanID() == s.Parent().SpanID() {
				s, names, i = spans[i], append(names, spans[i].Name()), -1
			}
		}
		return strings.Join(names, " < ")
	}
	paths := func(spans []sdk.ReadOnlySpan) (all []string) {
		for _, s := range spans {
			all = append(all, path(spans, s))
		}
		return all
	}
	if got, want := fmt.Sprint(paths(read("secret-1"))),
		"[cacheaside lease < cacheaside get < request SELECT < cacheaside load < cacheaside get < request cacheaside "+
			"load < cacheaside get < request cacheaside get < request request]"; got != want {
		t.Errorf("spans\n%s, want\n%s", got, want)
	}
	for key, want := range map[string]struct {
		status  codes.Code
		failure string
	}{"secret-broken": {codes.Error, "_OTHER"}, "secret-absent": {codes.Unset, "not_found"}} {
		for _, s := range read(key) {
			if s.Name() != "cacheaside load" {
				continue
			}
			failure := ""
			for _, a := range s.Attributes() {
				if a.Key == "error.type" {
					failure = a.Value.AsString()
				}
			}
			if s.Status().Code != want.status || failure != want.failure {
				t.Errorf("%s: %v, %q", key, s.Status(), failure)
			}
		}
	}
	for _, s := range recorder.Ended() {
		if text := fmt.Sprint(s.Name(), s.Attributes(), s.Status(), s.Events()); strings.Contains(text, "secret") {
			t.Errorf("a span tells %s", text)
		}
	}
}

// evil is an error whose methods panic.
type evil struct{}

func (evil) Error() string   { panic("Error") }
func (evil) Is(error) bool   { panic("Is") }
func (evil) Unwrap() []error { panic("Unwrap") }

// Mistakes are errors, not panics, nor two series of one name.
func TestBadUse(t *testing.T) {
	x := newScene(t, "")
	_, end := x.see.Begin(t.Context(), cacheaside.OpLoad, "user", 1)
	end(evil{})
	for what, err := range map[string]error{
		"Cache twice":    x.see.Cache(x.cache),
		"a nil Cache":    x.see.Cache(nil),
		"a nil Filter":   x.see.Filter("x", nil),
		"a nil Writer":   x.see.Writer("x", nil),
		"a nil Consumer": x.see.Consumer("x", nil),
		"a nil Meter":    x.see.Meter("x", nil),
		"a nil Relay":    x.see.Relay("x", nil),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "otelcacheaside: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	check(t, x.see.Close())
	check(t, x.see.Close())
	if err := x.see.Filter("late", nil); err == nil {
		t.Error("registered after Close")
	}
	for name := range x.scrape() {
		if strings.Contains(name, "gets_total") {
			t.Errorf("%s is collected after Close", name)
		}
	}
}
