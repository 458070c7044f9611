package promises

import (
	"context"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/codec"
)

// A value from Redis is decoded into the item for memory. If the round loads another value after
// that, memory gets the loaded value.
func TestItemHasLoadedValueOfRound(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "row", func(context.Context, int) (string, error) { return "", nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	key, loaded := 1, "loaded"
	decoded, unused, err := readerOf(l).Decode(codec.Payload{Codec: codec.Raw, Bytes: []byte("decoded")})
	if err != nil {
		t.Fatal(err)
	}
	for want, value := range map[string]any{"decoded": decoded, loaded: &loaded, "": nil} {
		item, _ := readerOf(l).New(&key, value, unused, value == nil, 0)
		if (item == unused) != (want == "decoded") {
			t.Errorf("%q: a new item: %t", want, item != unused)
		}
		if of, got := readerOf(l).Pair(item); *of.(*int) != key || *got.(*string) != want ||
			item.Null != (value == nil) {
			t.Errorf("an item of %v, %q, %t; want %v, %q", of, *got.(*string), item.Null, key, want)
		}
	}
}
