package limitedlog

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

type panickingStringer struct{}

func (panickingStringer) String() string { panic("within") }

// panickingError is an error whose methods panic.
type panickingError struct{}

func (panickingError) Error() string { return "an error" }
func (panickingError) As(any) bool   { panic("within") }

// TestPanicFields checks that a record about a panic has its text and its stack in fields, and
// that the message and the error do not contain the text.
func TestPanicFields(t *testing.T) {
	fields := func(err error) map[string]string {
		t.Helper()
		all := make(map[string]string)
		var kept testenv.Log
		to := slog.New(slog.NewJSONHandler(&kept,
			&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				all[a.Key] = a.Value.String()
				return a
			}}))
		Guarded(to).Warn("it failed", "key", 7, "err", err)
		if all["msg"] != "it failed" || all["key"] != "7" {
			t.Errorf("%q", all)
		}
		return all
	}
	recovered := func(value any) (p *Panic) {
		defer func() { p = Panicked("the source", recover()) }()
		panic(value)
	}
	numbers := map[string]int{"secret": 1}
	for _, c := range []struct {
		value any
		text  string
	}{
		{"secret", "secret"},
		{errors.New("secret"), "secret"},
		{42, "42"},
		{numbers, "a map[string]int"},
		{&numbers, "a *map[string]int"},
		{panickingStringer{}, "%!v(PANIC=String method: within)"},
		{strings.Repeat("ä", maxPanicText), strings.Repeat("ä", maxPanicText/2) + "…"},
		{strings.Repeat("x", maxPanicText-1) + "ä", strings.Repeat("x", maxPanicText-1) + "…"},
	} {
		p := recovered(c.value)
		for _, err := range []error{p, fmt.Errorf("wrapped: %w", errors.Join(errors.New("another"), p))} {
			f := fields(err)
			if f["panic"] != c.text || !strings.Contains(f["stack"], "TestPanicFields") || strings.Contains(f["err"],
				"secret") || !strings.Contains(f["err"], fmt.Sprintf("the source panicked with a %T", c.value)) {
				t.Errorf("a panic with a %T: %q", c.value, f)
			}
		}
	}
	if f := fields(Panicked("the source", nil)); f["stack"] == "" || f["err"] != "the source called runtime.Goexit" {
		t.Errorf("after runtime.Goexit: %q", f)
	} else if _, ok := f["panic"]; ok {
		t.Errorf("a panic without one: %q", f)
	}
	for _, err := range []error{nil, errors.New("no panic"), panickingError{}} {
		if f := fields(err); len(f) != 5 {
			t.Errorf("of %v: %q", err, f)
		}
	}
}
