package rows

import (
	"fmt"

	"github.com/cacheaside/cacheaside/internal/codec"
)

// values is a loader's codec as package fetch has it.
type values[V any] struct {
	*codec.Codec[V]
	panicked func(error) (value any, ok bool)
}

func (c values[V]) Encode(value any) (codec.Payload, error) { return c.Codec.Encode(Value[V](value)) }

func (c values[V]) Decode(p codec.Payload) (any, error) {
	value, err := c.Codec.Decode(p)
	if err == nil {
		return value, nil
	}
	if of, ok := c.panicked(err); ok {
		err = fmt.Errorf("to decode it panicked with a %T", of)
	}
	return nil, err
}
