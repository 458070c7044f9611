package invalidation

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// TestDecodeAnnouncements: a program that looks reads of a message what a listener does.
func TestDecodeAnnouncements(t *testing.T) {
	head := func(prev, num uint64) []byte {
		return fmt.Appendf(appendHead(nil, 3, 42), "%d %d ", prev, num)
	}
	keys := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(append(head(5, 9), keysKind), 77), 78)
	a, err := Decode(keys)
	var hashes []uint64
	a.Each(func(h uint64) { hashes = append(hashes, h) })
	if err != nil || a.Range != 3 || a.Origin != 42 || a.Previous != 5 || a.Number != 9 || a.Kind != 'k' ||
		!slices.Equal(hashes, []uint64{77, 78}) {
		t.Errorf("keys are read as %+v, %v", a, err)
	}
	for _, c := range []struct {
		body string
		kind byte
	}{{"luser", 'l'}, {"t123", 't'}, {"t", 't'}, {"k", 'k'}, {"l", 'l'}, {"k1", 0}, {"x", 0}} {
		a, err := Decode(append(head(1, 2), c.body...))
		if err != nil || a.Kind != c.kind || c.kind != 0 && string(a.Body) != c.body[1:] {
			t.Errorf("%q is read as %+v, %v", c.body, a, err)
		}
	}
	if _, err := Decode([]byte("nonsense")); err == nil {
		t.Error("nonsense is read")
	}
	if got := Topic("p", 3); got != "p::invalidations.3" {
		t.Errorf("the topic of database 3 is %q", got)
	}
}
