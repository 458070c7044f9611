// Package protobuf is an example: values that are Protocol Buffers, cached in their own encoding.
package protobuf

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"
)

// Codec is a cacheaside.Codec for loaders whose values are messages, as *bookpb.Book.
type Codec struct{}

// Number is in each entry: it never changes, and no other codec of this program has it.
func (Codec) Number() uint8 { return 8 }

// Check makes NewLoader refuse a type that is not a message, before anything is read. It is
// optional.
func (Codec) Check(t reflect.Type) error {
	if !t.Implements(reflect.TypeFor[proto.Message]()) {
		return fmt.Errorf("%v is not a proto.Message", t)
	}
	return nil
}

// Encode gets the loader's value, which is a pointer, and never nil.
func (Codec) Encode(v any) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }

// Decode gets a new message. Any bytes are safe: proto.Unmarshal bounds their nesting, and
// allocates at most in proportion to their length.
func (Codec) Decode(b []byte, v any) error { return proto.Unmarshal(b, v.(proto.Message)) }
