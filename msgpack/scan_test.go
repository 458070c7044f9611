package msgpack

import (
	"strings"
	"testing"
)

func scan(b []byte, portion int) error {
	var s scanner
	for len(b) > 0 {
		n := min(portion, len(b))
		if _, err := s.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return s.close()
}

func TestScan(t *testing.T) {
	rep := strings.Repeat
	for _, c := range []struct {
		in   string
		want error
	}{
		{"", errCut},
		{"\x00", nil}, {"\x7f", nil}, {"\xe0", nil}, {"\xff", nil}, {"\xc0", nil}, {"\xc2", nil}, {"\xc3", nil},
		{"\xc1", errByte}, {"\x91\xc1", errByte},
		{"\xc0\xc0", errTrailing}, {"\x90\x00", errTrailing}, {"\xa0\x00", errTrailing}, {"\x91\x01\x02", errTrailing},
		{"\xcc1", nil}, {"\xcd12", nil}, {"\xce1234", nil}, {"\xcf12345678", nil},
		{"\xd01", nil}, {"\xd112", nil}, {"\xd21234", nil}, {"\xd312345678", nil},
		{"\xca1234", nil}, {"\xcb12345678", nil},
		{"\xcc", errCut}, {"\xcd1", errCut}, {"\xce123", errCut}, {"\xcf1234567", errCut}, {"\xca123", errCut}, {"\xcb1234567", errCut},
		{"\xa0", nil}, {"\xa3abc", nil}, {"\xa3ab", errCut}, {"\xbf" + rep("a", 31), nil}, {"\xbf" + rep("a", 30), errCut},
		{"\xd9\x00", nil}, {"\xd9\x02ab", nil}, {"\xd9\x02a", errCut}, {"\xda\x01\x00" + rep("a", 256), nil}, {"\xdb\x00\x01\x00\x00" + rep("a", 1<<16), nil},
		{"\xc4\x00", nil}, {"\xc4\x02ab", nil}, {"\xc5\x01\x00" + rep("a", 255), errCut}, {"\xc6\x00\x00\x00\x01a", nil},
		{"\xdb\xff\xff\xff\xff", errCut}, {"\xc6\xff\xff\xff\xffa", errCut},
		{"\x90", nil}, {"\x92\x01\x02", nil}, {"\x92\x01", errCut}, {"\x9f" + rep("\x01", 15), nil},
		{"\x80", nil}, {"\x81\x01\x02", nil}, {"\x81\x01", errCut}, {"\x8f" + rep("\x01", 30), nil}, {"\x8f" + rep("\x01", 29), errCut},
		{"\xdc\x00\x00", nil}, {"\xdc\x00\x02\x01\x02", nil}, {"\xdd\x00\x00\x00\x01\x01", nil}, {"\xdd\xff\xff\xff\xff\x01", errCut},
		{"\xde\x00\x00", nil}, {"\xde\x00\x01\x01\x02", nil}, {"\xdf\x00\x00\x00\x01\x01\x02", nil}, {"\xdf\xff\xff\xff\xff\x01", errCut},
		{"\x92\x91\x90\x81\xa1a\x92\xc0\xcc1", nil}, {"\x93\x91\x90\x81\xa1a\x92\xc0\xcc1", errCut}, {"\x92\x91\x90\x81\xa1a\x92\xc0\xcc1\x90", errTrailing},
		{"\xd6\xff1234", nil}, {"\xd7\xff12345678", nil}, {"\xc7\x0c\xff123456789012", nil}, {"\xc7\x08\xff12345678", nil},
		{"\xd6\xff123", errCut}, {"\xd6", errCut}, {"\xc7\x0c", errCut}, {"\xc8\x00\x0c\xff123456789012", nil}, {"\xc9\x00\x00\x00\x0c\xff123456789012", nil},
		{"\xd6\x011234", errExtension}, {"\xd4\xff1", errExtension}, {"\xd8\xff", errExtension}, {"\xc7\x00\xff", errExtension}, {"\xc9\xff\xff\xff\xff\xff", errExtension},
		{rep("\x91", maxDepth) + "\x01", nil}, {rep("\x91", maxDepth+1) + "\x01", errDeep}, {rep("\x91", maxDepth) + "\x90", nil},
		{rep("\x81\x01", maxDepth) + "\x01", nil}, {rep("\x81\x01", maxDepth+1) + "\x01", errDeep}, {rep("\x81", 10_000_000), errDeep},
		{rep("\x92\x90", maxDepth*2), errDeep}, {"\xdc\xff\xff" + rep("\x91\x01", 1<<16-1), nil},
	} {
		for _, portion := range []int{len(c.in) + 1, 1, 3} {
			if err := scan([]byte(c.in), portion); err != c.want {
				t.Errorf("%.20q (%d bytes) in portions of %d: %v, want %v", c.in, len(c.in), portion, err, c.want)
			}
		}
	}
}

// FuzzScan writes bytes in portions. The verdict is the same as for all bytes at once, and Decode
// refuses everything that the scanner refuses.
func FuzzScan(f *testing.F) {
	for _, s := range []string{"", "\xc0", "\x82\xa1a\x92\xc0\xcc1\x00\x90", "\xd7\xff12345678", "\xdd\xff\xff\xff\xff",
		"\x91\x91\x91\x90", "\xc4\x02ab", "\xcb12345678"} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, portion int) {
		err := scan(b, len(b)+1)
		if in := scan(b, max(portion%16, 1)); in != err {
			t.Errorf("%v at once, %v in portions", err, in)
		}
		var v any
		if decoded := Codec.Decode(b, &v); err != nil && decoded != err {
			t.Errorf("the scanner returns %v, Decode %v", err, decoded)
		}
	})
}
