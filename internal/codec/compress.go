package codec

import (
	"github.com/klauspost/compress/s2"
)

// compress makes p smaller, or leaves it as it is. S2's block format states the length of what is
// in it, so that decompress can refuse it before anything is allocated. A stream format would have
// to be cut off while it grows.
func (p *Payload) compress() {
	if b := s2.Encode(nil, p.Bytes); len(b) < len(p.Bytes) {
		p.Bytes, p.Compressed = b, true
	}
}

// Len returns the length of the encoding before compression.
func (p Payload) Len() int {
	if p.Compressed {
		n, _ := s2.DecodedLen(p.Bytes)
		return n
	}
	return len(p.Bytes)
}

func (p *Payload) decompress(maxBytes int) error {
	n, err := s2.DecodedLen(p.Bytes)
	if err != nil {
		return err
	}
	if n > maxBytes {
		return ErrTooLarge
	}
	p.Bytes, err = s2.Decode(nil, p.Bytes) // refuses blocks that are shorter or longer than stated
	return err
}
