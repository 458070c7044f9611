// Package protobuf is an example: values that are Protocol Buffers, cached as such.
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

// Check has NewLoader refuse what is no message. It is not needed, but tells so before anything is
// read.
func (Codec) Check(t reflect.Type) error {
	if !t.Implements(reflect.TypeFor[proto.Message]()) {
		return fmt.Errorf("%v is not a proto.Message", t)
	}
	return nil
}

// Encode gets the loader's value, which is a pointer, and never nil.
func (Codec) Encode(v any) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }

// Decode gets a new message. It bears any bytes: proto.Unmarshal bounds how deep they are nested,
// and allocates no more than in proportion to them.
func (Codec) Decode(b []byte, v any) error { return proto.Unmarshal(b, v.(proto.Message)) }
