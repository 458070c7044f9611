package lease

import (
	"bytes"
	"testing"
	"time"
)

// TestDecodeForWhoLooks: the beginning of an entry has the same information as all of it, and a
// mark names its owner.
func TestDecodeForWhoLooks(t *testing.T) {
	e := Entry{Codec: 3, Keyed: true, Key: "key", Payload: []byte("payload"), Stamp: newToken(),
		Expiry: time.UnixMilli(1790000000123), Cost: 1500 * time.Microsecond, Generation: 7}
	b := appendEntry(nil, e)
	for _, cut := range [][]byte{b, b[:HeadSize]} {
		s := Decode(cut)
		if s.Kind != Stored || s.Entry.Stamp != e.Stamp || !s.Entry.Expiry.Equal(e.Expiry) || s.Entry.Cost != e.Cost ||
			s.Entry.Generation != 7 || s.Entry.Codec != 3 || !s.Entry.Keyed {
			t.Errorf("of %d bytes it reads %+v", len(cut), s)
		}
		if !bytes.HasPrefix([]byte("keypayload"), s.Entry.Payload) {
			t.Errorf("the payload begins with %q", s.Entry.Payload)
		}
	}
	if s := Decode(b[:HeadSize-1]); s.Kind != Unknown {
		t.Errorf("less than a header is %d, not Unknown", s.Kind)
	}
	token := newToken()
	if s := Decode(appendMark(nil, string(token[:]))); s.Kind != Held || s.Token != token {
		t.Errorf("a mark is %d of %v, not Held of %v", s.Kind, s.Token, token)
	}
	if s := Decode(appendLease(nil, token)); s.Kind != Busy || s.Token != token {
		t.Errorf("a lease is %d of %v", s.Kind, s.Token)
	}
}
