package keys

import (
	"strings"
	"testing"
)

// Where results go, so that they cannot stay on the stack.
var sink struct {
	text string
	long bool
	hash uint64
}

// What a round pays for its key, on its way to Redis.
func TestAllocations(t *testing.T) {
	n := NewNamespace("cacheaside", "users", "1")
	longest := strings.Repeat("x", 256)
	hashed := strings.Repeat("x", 257)
	allocations(t, "Name", 1, func() { sink.text, sink.long = n.Name("some key of a usual length") })
	allocations(t, "Name, empty", 1, func() { sink.text, sink.long = n.Name("") })
	allocations(t, "Name, escaped", 2, func() { sink.text, sink.long = n.Name("a}b") })
	allocations(t, "Name, 256 bytes", 1, func() { sink.text, sink.long = n.Name(longest) })
	allocations(t, "Name, long", 3, func() { sink.text, sink.long = n.Name(hashed) })
	allocations(t, "Hash", 0, func() { sink.hash = n.Hash("some key of a usual length") })
	allocations(t, "Hash, long", 0, func() { sink.hash = n.Hash(hashed) })

	encoded(t, "string", 0, "some key of a usual length")
	encoded(t, "named string", 0, userID("some key of a usual length"))
	encoded(t, "int64", 1, int64(1234567890123))
	encoded(t, "int64, negative", 1, int64(-1))
	encoded(t, "int64, small", 0, int64(99))
	encoded(t, "int", 1, 123456)
	encoded(t, "named int64", 1, orderID(1234567890123))
	encoded(t, "uint64", 1, uint64(1<<63))
	encoded(t, "uint8", 1, uint8(100))
	encoded(t, "uint8, small", 0, uint8(7))

	encode := encoder(t, func(k userID) string { return string(k) })
	allocations(t, "custom", 0, func() { sink.text, _ = encode("u1") }) // nothing in addition to its own allocations
}

func encoded[K comparable](t *testing.T, step string, most float64, key K) {
	t.Helper()
	encode := encoder[K](t, nil)
	allocations(t, step, most, func() { sink.text, _ = encode(key) })
}

func allocations(t *testing.T, step string, most float64, f func()) {
	t.Helper()
	got := testing.AllocsPerRun(200, f)
	t.Logf("%-20s %v", step, got)
	if got > most && !underRace {
		t.Errorf("%s: %v allocations, at most %v expected", step, got, most)
	}
}
