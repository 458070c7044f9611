package codec

import "slices"

// null is a nil where the codec has none.
func null() Payload { return Payload{Codec: JSON, Bytes: []byte("null")} }

// encodeRaw encodes a *string or a *[]byte.
func encodeRaw(v any, maxBytes int) (Payload, error) {
	switch v := v.(type) {
	case *string:
		if len(*v) > maxBytes {
			return Payload{}, ErrTooLarge // before it is copied
		}
		return Payload{Codec: Raw, Bytes: []byte(*v)}, nil
	case *[]byte:
		if *v != nil {
			return Payload{Codec: Raw, Bytes: *v}, nil
		}
	}
	return null(), nil
}

// decodeRaw decodes into a *string or a *[]byte, which is empty then but never nil.
func decodeRaw(b []byte, v any) {
	switch v := v.(type) {
	case *string:
		*v = string(b)
	case *[]byte:
		*v = slices.Clip(b) // so that an append to it writes nowhere else
		if b == nil {
			*v = []byte{}
		}
	}
}
