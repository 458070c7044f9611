package errtree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
)

var errDown = errors.New("the database is down")

// endless wraps another one for ever.
type endless struct{ n int }

func (e endless) Error() string { return fmt.Sprint("endless ", e.n) }
func (e endless) Unwrap() error { return endless{e.n + 1} }

// circle wraps itself.
type circle struct{}

func (*circle) Error() string     { return "a circle" }
func (c *circle) Unwrap() []error { return []error{c, errDown} }

// uncomparable cannot be compared, not even with itself.
type uncomparable []int

func (uncomparable) Error() string        { return "uncomparable" }
func (uncomparable) Is(target error) bool { return target == fs.ErrExist }

func joined(depth, width int, err error) error {
	for range depth {
		errs := make([]error, width)
		for i := range errs {
			errs[i] = fmt.Errorf("of a key: %w", err)
		}
		err = errors.Join(errs[:1]...)
		err = &many{append(errs, err)}
	}
	return err
}

// many is a tree whose text costs nothing.
type many struct{ errs []error }

func (m *many) Error() string   { return "many" }
func (m *many) Unwrap() []error { return m.errs }

func TestSmallErrorsAreKept(t *testing.T) {
	for _, err := range []error{nil, errDown, fmt.Errorf("load: %w", errDown), errors.Join(errDown, context.Canceled),
		joined(2, 3, errDown)} {
		if got := Bound(err); got != err {
			t.Errorf("%v has become %v", err, got)
		}
	}
}

func TestLargeErrorsAreSummarized(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}
	wide := make([]error, 3000)
	for i := range wide {
		wide[i] = fmt.Errorf("key %d: %w", i, errDown)
	}
	doubled := errDown
	for range 60 {
		doubled = &many{[]error{doubled, doubled}}
	}
	for name, err := range map[string]error{
		"deep":         joined(8, 100, errors.Join(errDown, path)),
		"wide":         errors.Join(errors.Join(wide...), path),
		"shared":       &many{[]error{doubled, path}},
		"endless":      &many{[]error{errDown, path, endless{}}},
		"a circle":     &many{[]error{path, &circle{}}},
		"uncomparable": &many{append([]error{uncomparable{1}, path, errDown}, wide...)},
	} {
		got := Bound(err)
		if got == err {
			t.Errorf("%s: it is kept", name)
		}
		pathErr, ok := errors.AsType[*fs.PathError](got)
		if !errors.Is(got, errDown) || !errors.Is(got, fs.ErrPermission) || !ok || pathErr != path ||
			errors.Is(got, context.Canceled) {
			t.Errorf("%s: %v", name, got)
		}
		if name == "uncomparable" && !errors.Is(got, fs.ErrExist) {
			t.Error("the Is of an error is not asked")
		}
		if s := got.(*summary); len(s.errs) > inAll || len(s.text) > longText+3 || s.text == "" {
			t.Errorf("%s: %d errors, %d bytes", name, len(s.errs), len(s.text))
		}
	}
}

func TestSharedReturnsTheSame(t *testing.T) {
	bound, err := Shared(), joined(4, 100, errDown)
	first := bound(err)
	if second := bound(err); second != first || bound(nil) != nil || bound(errDown) != errDown ||
		bound(uncomparable{}) == nil {
		t.Error(first, second)
	}
}
