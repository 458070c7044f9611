package keys

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mark marshals itself, and reads what it has marshaled; and more.
type mark struct {
	weight float64
	label  string
}

func (m mark) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%g %s", m.weight, m.label), nil }

func (m *mark) UnmarshalText(text []byte) error {
	if string(text) == "panic" {
		panic(text)
	}
	if _, err := fmt.Sscanf(string(text), "%g", &m.weight); err != nil {
		return err
	}
	_, m.label, _ = strings.Cut(string(text), " ")
	clear(text) // it is its own
	return nil
}

// folded reads any case, and has its text in one.
type folded string

func (f folded) MarshalText() ([]byte, error) { return []byte(strings.ToLower(string(f))), nil }

func (f *folded) UnmarshalText(text []byte) error {
	*f = folded(strings.ToLower(string(text)))
	return nil
}

// vain has a method for reading that is never used: its text is that of its kind.
type vain int

func (v *vain) UnmarshalText([]byte) error { *v = 7; return nil }

// decodes fails unless each of texts is decoded, and is its key's text.
func decodes[K comparable](t *testing.T, texts ...string) {
	t.Helper()
	encode := encoder[K](t, nil)
	for _, text := range texts {
		key, ok := Decoder(encode)(text)
		if again, err := encode(key); !ok || again != text || err != nil {
			t.Errorf("%T: %q: %v, %v; its text is %q, %v", key, text, key, ok, again, err)
		}
	}
}

// declines fails unless none of texts is decoded.
func declines[K comparable](t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		var none K
		if key, ok := Decoder(encoder[K](t, nil))(text); ok {
			t.Errorf("%T: %q was read as %v", none, text, key)
		}
	}
}

func TestDecoder(t *testing.T) {
	decodes[string](t, "", "plain", "\x00\xff\n{}%", "007")
	decodes[userID](t, "u1")
	decodes[int](t, "0", "-5", strconv.Itoa(math.MaxInt))
	decodes[int8](t, "-128", "127")
	decodes[int16](t, "-32768", "32767")
	decodes[int32](t, "-2147483648", "2147483647")
	decodes[int64](t, fmt.Sprint(int64(math.MinInt64)), fmt.Sprint(int64(math.MaxInt64)))
	decodes[orderID](t, "-7")
	decodes[uint](t, "5")
	decodes[uint8](t, "255")
	decodes[uint16](t, "65535")
	decodes[uint32](t, "4294967295")
	decodes[uint64](t, "18446744073709551615")
	decodes[shard](t, "9")
	decodes[mark](t, "1.5 a", "-2 a b", "1e+09 ")
	decodes[folded](t, "", "ann")
	decodes[vain](t, "12")
	decodes[time.Time](t, "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678+02:00")
	decodes[netip.Addr](t, "10.1.2.3", "::1", "")

	for _, text := range []string{"", " 1", "1 ", "+1", "01", "-0", "00", "1_000", "0x1", "1.0", "١", "one", "-",
		"9223372036854775808", "1e3", "1\x00"} {
		declines[int](t, text)
		declines[int64](t, text)
		declines[orderID](t, text)
		if text != "9223372036854775808" {
			declines[uint64](t, text)
		}
	}
	declines[int8](t, "128", "-129", "256", "-256")
	declines[int16](t, "32768", "65536")
	declines[int32](t, "2147483648", "-2147483649")
	declines[uint8](t, "256", "-1")
	declines[uint16](t, "65536")
	declines[uint32](t, "4294967296")
	declines[uint64](t, "18446744073709551616", "-1")
	declines[mark](t, "", "heavy", "panic", "1.50 a", "NaN a")
	declines[netip.Addr](t, "10.1.2", "::0001", "::FFFF")
}

// A text that is read as a key, but is not that key's, is another's.
func TestDecoderReadsOwnTextsOnly(t *testing.T) {
	declines[int](t, "007")
	declines[folded](t, "Ann")
}

// What cannot be read back is not read at all.
func TestNoDecoder(t *testing.T) {
	unread[loudName](t) // has no UnmarshalText, and its kind would read what it does not write
	unread[pair](t)
	unread[*pair](t)
	unread[*mark](t) // a pointer is a key of its own
	unread[encoding.TextMarshaler](t)
	if Decoder(func(float64) (string, error) { return "", nil }) != nil {
		t.Error("a float is read")
	}
}

func unread[K comparable](t *testing.T) {
	t.Helper()
	if Decoder(encoder[K](t, nil)) != nil {
		var none K
		t.Errorf("%T is read", none)
	}
}

// An encoder that fails, or makes another text of it, is believed.
func TestDecoderAsksTheEncoder(t *testing.T) {
	for _, encode := range []func(int) (string, error){
		func(int) (string, error) { return "1", errors.New("no text") },
		func(int) (string, error) { return "2", nil },
	} {
		if key, ok := Decoder(encode)("1"); ok {
			t.Error(key)
		}
	}
}

// quitter ends the goroutine that reads it.
type quitter string

func (q quitter) MarshalText() ([]byte, error) { return []byte(q), nil }

func (q *quitter) UnmarshalText([]byte) error { runtime.Goexit(); return nil }

func TestDecoderLetsGoexitPass(t *testing.T) {
	decode := Decoder(encoder[quitter](t, nil))
	done := make(chan struct{})
	go func() {
		defer close(done)
		decode("x")
		t.Error("it went on")
	}()
	<-done
}

// A decoded key always has the decoded text, and each key is decoded from its own text.
func FuzzDecodeKey(f *testing.F) {
	for _, text := range []string{"", "0", "-1", "007", "255", "256", "-32769", "18446744073709551615", "1.5 a", "NaN",
		"panic", "Ann", "10.1.2.3", "2026-01-02T03:04:05Z"} {
		f.Add(text, int64(42))
	}
	f.Fuzz(func(t *testing.T, text string, n int64) {
		inverse(t, text, text)
		inverse(t, text, userID(text))
		inverse(t, text, int(n))
		inverse(t, text, int8(n))
		inverse(t, text, int16(n))
		inverse(t, text, int32(n))
		inverse(t, text, n)
		inverse(t, text, uint(n))
		inverse(t, text, uint8(n))
		inverse(t, text, uint16(n))
		inverse(t, text, uint32(n))
		inverse(t, text, uint64(n))
		inverse(t, text, vain(n))
		inverse(t, text, folded(strings.ToLower(text)))
		inverse(t, text, mark{float64(n), text})
		inverse(t, text, netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}))
		decoded[time.Time](t, text)
	})
}

func inverse[K comparable](t *testing.T, text string, key K) {
	t.Helper()
	decoded[K](t, text)
	encode := encoder[K](t, nil)
	encoded, err := encode(key)
	if got, ok := Decoder(encode)(encoded); err != nil || !ok || got != key {
		t.Errorf("%T(%v) has the text %q, which is read as %v, %v", key, key, encoded, got, ok)
	}
}

func decoded[K comparable](t *testing.T, text string) {
	t.Helper()
	encode := encoder[K](t, nil)
	if key, ok := Decoder(encode)(text); ok {
		if again, err := encode(key); again != text || err != nil {
			t.Errorf("%q was read as %T(%v), whose text is %q, %v", text, key, key, again, err)
		}
	}
}
