package codec

import (
	"errors"
	"fmt"
	"reflect"
)

// ErrTooLarge is the error of what is longer than New's maxBytes: an encoding, a payload, or what a
// payload would be decompressed to.
var ErrTooLarge = errors.New("codec: too large")

// hidden cuts an error down to its type: the texts of encoding/json and of others quote the value,
// which may be private.
func hidden[V any](op string, id ID, err error) error {
	if errors.Is(err, ErrTooLarge) {
		return ErrTooLarge
	}
	if changed, ok := errors.AsType[NotCarried](err); ok {
		return changed
	}
	if own, ok := errors.AsType[FormatError](err); ok {
		return fmt.Errorf("codec: %s %v of %v: %w", op, id, reflect.TypeFor[V](), own)
	}
	return fmt.Errorf("codec: %s %v of %v: %T", op, id, reflect.TypeFor[V](), err)
}

// FormatError is a text of this module's own about a payload, which shows nothing of the value.
type FormatError string

func (e FormatError) Error() string { return string(e) }
