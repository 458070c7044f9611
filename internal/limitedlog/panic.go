package limitedlog

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
)

// A Panic is the error of a function of the user that has panicked or called runtime.Goexit. Its
// text does not contain the value of the panic, which may be private. A Guarded logger adds the
// value and the stack to a record as fields.
type Panic struct {
	Who   string // the function
	Value any    // nil for runtime.Goexit
	Stack []byte
}

// Panicked returns the error of the function who. recovered is the result of recover. The deferred
// function that recovers must call it, so that the stack contains the place of the panic.
func Panicked(who string, recovered any) *Panic {
	return &Panic{Who: who, Value: recovered, Stack: debug.Stack()}
}

func (p *Panic) Error() string {
	if p.Value == nil {
		return p.Who + " called runtime.Goexit"
	}
	return fmt.Sprintf("%s panicked with a %T", p.Who, p.Value)
}

// maxPanicText is the maximum length of the text of a panic in a record, in bytes.
const maxPanicText = 4 << 10

// withPanic returns a record with the fields "panic" and "stack" if an error in one of its fields
// is or wraps a Panic, or an error whose As method returns one.
func withPanic(r slog.Record) slog.Record {
	p := panicOf(r)
	if p == nil {
		return r
	}
	r = r.Clone()
	if p.Value != nil {
		r.AddAttrs(slog.String("panic", p.text()))
	}
	r.AddAttrs(slog.String("stack", string(p.Stack)))
	return r
}

// panicOf returns the panic in the fields of a record, or nil. Methods of the user's errors may
// panic.
func panicOf(r slog.Record) (p *Panic) {
	defer func() {
		if recover() != nil {
			p = nil
		}
	}()
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			p, _ = errors.AsType[*Panic](err)
		}
		return p == nil
	})
	return p
}

// text returns the value as text. Like the Go runtime, it shows no parts of other values than
// errors, Stringers, strings and numbers: other goroutines may change them.
func (p *Panic) text() (text string) {
	switch v := p.Value.(type) {
	case error, fmt.Stringer, string, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64,
		uintptr, float32, float64, complex64, complex128:
		text = fmt.Sprint(v) // recovers from panics of the methods
	default:
		text = fmt.Sprintf("a %T", v)
	}
	if len(text) > maxPanicText {
		text = strings.ToValidUTF8(text[:maxPanicText], "") + "…"
	}
	return text
}
