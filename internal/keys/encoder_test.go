package keys

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
)

type (
	userID   string
	orderID  int64
	shard    uint16
	loudName string
	pair     struct{ a, b int }
)

func (l loudName) MarshalText() ([]byte, error) { return []byte(strings.ToUpper(string(l))), nil }

var errNegative = errors.New("negative")

func (p pair) MarshalText() ([]byte, error) {
	if p.a < 0 {
		return []byte("half of it"), errNegative
	}
	return fmt.Appendf(nil, "%d/%d", p.a, p.b), nil
}

// fromPanic is the error that the tests' caught returns.
type fromPanic struct{ recovered any }

func (fromPanic) Error() string { return "a panic" }

func caught(recovered any) error { return fromPanic{recovered} }

func encoder[K comparable](t *testing.T, custom func(K) string) func(K) (string, error) {
	t.Helper()
	encode, err := Encoder(custom, caught)
	if err != nil {
		t.Fatal(err)
	}
	return encode
}

func encodes[K comparable](t *testing.T, key K, want string) {
	t.Helper()
	if got, err := encoder[K](t, nil)(key); err != nil || got != want {
		t.Errorf("%T(%v): %q, %v; want %q", key, key, got, err, want)
	}
}

func TestKeyEncoders(t *testing.T) {
	encodes(t, "plain", "plain")
	encodes(t, "", "")
	encodes(t, "\x00\xff\n{}%", "\x00\xff\n{}%")
	encodes(t, userID("u1"), "u1")

	encodes(t, 0, "0")
	encodes(t, -5, "-5")
	encodes(t, int8(math.MinInt8), "-128")
	encodes(t, int16(math.MinInt16), "-32768")
	encodes(t, int32(math.MinInt32), "-2147483648")
	encodes(t, int64(math.MinInt64), "-9223372036854775808")
	encodes(t, int64(math.MaxInt64), "9223372036854775807")
	encodes(t, orderID(-7), "-7")
	encodes(t, 'x', "120")

	encodes(t, uint(5), "5")
	encodes(t, uint8(math.MaxUint8), "255")
	encodes(t, uint16(math.MaxUint16), "65535")
	encodes(t, uint32(math.MaxUint32), "4294967295")
	encodes(t, uint64(math.MaxUint64), "18446744073709551615")
	encodes(t, shard(9), "9")

	encodes(t, pair{1, 2}, "1/2")
	encodes(t, &pair{1, 2}, "1/2")
	encodes(t, loudName("ann"), "ANN") // not what its kind would give
	encodes(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "2026-01-02T03:04:05Z")
	encodes(t, netip.MustParseAddr("10.1.2.3"), "10.1.2.3")

	if text, err := encoder[pair](t, nil)(pair{a: -1}); text != "" || !errors.Is(err, errNegative) {
		t.Errorf("%q, %v", text, err)
	}
}

func TestCustomEncoderIsUsedForAnyKey(t *testing.T) {
	custom(t, 1.5)
	custom(t, true)
	custom(t, [2]int{1, 2})
	custom(t, struct{ a, b string }{"1", "2"})
	custom(t, "plain")
	custom(t, 42)
	custom(t, pair{-1, 2})
	custom[any](t, nil)
}

func custom[K comparable](t *testing.T, key K) {
	t.Helper()
	encode := encoder(t, func(k K) string { return fmt.Sprintf("<%v>", any(k) == any(key)) })
	if text, err := encode(key); text != "<true>" || err != nil {
		t.Errorf("%T: %q, %v", key, text, err)
	}
}

func TestKeysWithoutTextAreRefused(t *testing.T) {
	refused[float64](t, "float64")
	refused[float32](t, "float32")
	refused[complex128](t, "complex128")
	refused[bool](t, "bool")
	refused[uintptr](t, "uintptr")
	refused[[2]int](t, "[2]int")
	refused[[16]byte](t, "[16]uint8")
	refused[struct{ A int }](t, "struct { A int }")
	refused[*string](t, "*string")
	refused[chan int](t, "chan int")
	refused[any](t, "interface {}")
	refused[error](t, "error")
}

func refused[K comparable](t *testing.T, name string) {
	t.Helper()
	want := "keys of type " + name +
		" have no text form: use a string, an integer or an encoding.TextMarshaler, or set LoaderOptions.Key"
	if encode, err := Encoder[K](nil, caught); encode != nil || err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestEncoderPanics(t *testing.T) {
	panics(t, encoder[*pair](t, nil), nil)
	panics(t, encoder[fmt.Stringer](t, func(s fmt.Stringer) string { return s.String() }), nil)
	panics(t, encoder(t, func(*pair) string { panic(errNegative) }), nil)
	panics(t, encoder(t, func(int) string { panic(nil) }), 1) // recovered as a *runtime.PanicNilError
}

func panics[K comparable](t *testing.T, encode func(K) (string, error), key K) {
	t.Helper()
	text, err := encode(key)
	if p, ok := errors.AsType[fromPanic](err); !ok || text != "" || p.recovered == nil {
		t.Errorf("%q, %v", text, err)
	}
}

// Goexit, as by t.FailNow, passes through an encoder: the owner of the goroutine sees it.
func TestEncoderLetsGoexitPass(t *testing.T) {
	encode, err := Encoder(func(int) string { runtime.Goexit(); return "" }, func(recovered any) error {
		t.Errorf("caught %v", recovered)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		text, err := encode(1)
		t.Errorf("it went on with %q, %v", text, err)
	}()
	<-done
}
