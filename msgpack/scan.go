package msgpack

import "github.com/cacheaside/cacheaside/internal/codec"

// maxDepth is the maximum nesting of arrays and maps, the same as in encoding/json.
const maxDepth = 10_000

const (
	errCut       = codec.FormatError("cut off")
	errTrailing  = codec.FormatError("bytes after the value")
	errDeep      = codec.FormatError("nested too deep")
	errByte      = codec.FormatError("no such type")
	errExtension = codec.FormatError("an extension that is not a timestamp")
)

// scanner checks the structure of MessagePack as its bytes are written to it, in chunks of any
// size. It uses no recursion. It accepts one complete value, nested at most maxDepth deep. So
// each element that an array or a map claims to have is present: the sum of all claims is at most
// the number of bytes, and nothing is allocated for missing elements.
type scanner struct {
	open   []uint64 // the number of missing values in each open array and map, the innermost last; a map's keys count
	begun  byte     // first byte of the value whose length is being read
	head   int      // missing bytes of that length, and of an extension's type
	length uint64
	skip   uint64 // missing bytes of a number, string, or extension
	done   bool   // the value is complete
}

// Write scans the next chunk.
func (s *scanner) Write(b []byte) (int, error) {
	for i := 0; i < len(b); {
		switch {
		case s.skip > 0:
			n := min(s.skip, uint64(len(b)-i))
			i += int(n)
			s.skip -= n
			if s.skip == 0 {
				s.end()
			}
			continue
		case s.head > 0:
			if err := s.header(b[i]); err != nil {
				return i, err
			}
		case s.done:
			return i, errTrailing
		default:
			if err := s.begin(b[i]); err != nil {
				return i, err
			}
		}
		i++
	}
	return len(b), nil
}

// begin reads the first byte of a value.
func (s *scanner) begin(c byte) error {
	s.begun, s.length = c, 0
	switch {
	case c < 0x80, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3: // small number, nil, false, true
		s.end()
	case c < 0x90:
		return s.nest(2 * uint64(c&15))
	case c < 0xa0:
		return s.nest(uint64(c & 15))
	case c < 0xc0:
		s.pass(uint64(c & 31))
	case c == 0xc1:
		return errByte
	case c <= 0xc6: // bin 8, 16, 32
		s.head = 1 << (c - 0xc4)
	case c <= 0xc9: // ext 8, 16, 32
		s.head = 1<<(c-0xc7) + 1
	case c <= 0xcb: // float 32, 64
		s.pass(4 << (c - 0xca))
	case c <= 0xcf: // uint 8 to 64
		s.pass(1 << (c - 0xcc))
	case c <= 0xd3: // int 8 to 64
		s.pass(1 << (c - 0xd0))
	case c <= 0xd8: // fixext 1 to 16
		s.length, s.head = 1<<(c-0xd4), 1
	case c <= 0xdb: // str 8, 16, 32
		s.head = 1 << (c - 0xd9)
	case c <= 0xdd: // array 16, 32
		s.head = 2 << (c - 0xdc)
	default: // map 16, 32
		s.head = 2 << (c - 0xde)
	}
	return nil
}

// header reads the next byte of a length, or the type byte of an extension after it.
func (s *scanner) header(c byte) error {
	s.head--
	ext := s.begun >= 0xc7 && s.begun <= 0xc9 || s.begun >= 0xd4 && s.begun <= 0xd8
	if s.head > 0 || !ext {
		s.length = s.length<<8 | uint64(c)
	} else if c != 0xff || s.length != 4 && s.length != 8 && s.length != 12 {
		return errExtension // only timestamps are written; the library would decode others by its own rules
	}
	switch {
	case s.head > 0:
	case s.begun >= 0xde:
		return s.nest(2 * s.length)
	case s.begun >= 0xdc:
		return s.nest(s.length)
	default:
		s.pass(s.length)
	}
	return nil
}

// nest opens an array or a map of n values.
func (s *scanner) nest(n uint64) error {
	switch {
	case n == 0:
		s.end()
	case len(s.open) == maxDepth:
		return errDeep
	default:
		s.open = append(s.open, n)
	}
	return nil
}

// pass skips n bytes, which complete a value.
func (s *scanner) pass(n uint64) {
	if s.skip = n; n == 0 {
		s.end()
	}
}

// end records that a value is complete. If it is the last value of an array or a map, that is
// complete too.
func (s *scanner) end() {
	for last := len(s.open) - 1; last >= 0; last-- {
		s.open[last]--
		if s.open[last] > 0 {
			return
		}
		s.open = s.open[:last]
	}
	s.done = true
}

// close returns an error if the value is not complete.
func (s *scanner) close() error {
	if !s.done {
		return errCut
	}
	return nil
}
