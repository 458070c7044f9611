package invalidation

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// head and body are joined by the script, with the numbers between them.
func encode(rng int, origin uint64, numbers string, body []byte) []byte {
	return append(append(appendHead(nil, rng, origin), numbers...), body...)
}

// Programs of later versions must read these, and write them for this one.
func TestFormatOfMessages(t *testing.T) {
	for name, c := range map[string]struct {
		written []byte
		golden  string  // hexadecimal
		want    Message // without its Body
		loader  string
		hashes  []uint64
	}{
		"keys": {
			encode(3, 0x0102030405060708, "1700000000000000 1700000000000001 ",
				appendKeys(nil, []uint64{0x1122334455667788, 1})),
			"c1030102030405060708" + "3137303030303030303030303030303020" + "3137303030303030303030303030303120" +
				"6b11223344556677880000000000000001",
			Message{Range: 3, Origin: 0x0102030405060708, Previous: 1700000000000000, Number: 1700000000000001,
				Kind: 'k'}, "",
			[]uint64{0x1122334455667788, 1},
		},
		"a loader": {
			encode(15, 1<<64-1, "0 9007199254740991 ", appendLoader(nil, "users")),
			"c10fffffffffffffffff" + "3020" + "3930303731393932353437343039393120" + "6c7573657273",
			Message{Range: 15, Origin: 1<<64 - 1, Number: 1<<53 - 1, Kind: 'l'}, "users",
			nil,
		},
		"no keys": {
			encode(0, 0, "1 2 ", appendKeys(nil, nil)),
			"c1000000000000000000" + "3120" + "3220" + "6b",
			Message{Previous: 1, Number: 2, Kind: 'k'}, "",
			nil,
		},
		"of a later version": {nil, "c1010000000000000007" + "3520" + "3920" + "7abeef", Message{Range: 1, Origin: 7, Previous: 5, Number: 9}, "", nil},
		"keys of a later version": {
			nil, "c1010000000000000007" + "3520" + "3920" + "6b00112233445566778899",
			Message{Range: 1, Origin: 7, Previous: 5, Number: 9}, "", nil,
		},
		"a group": {
			encode(2, 7, "5 9 ", appendGroups(nil, "users", groups.SetOf(0x1122334455667788, 1))),
			"c1020000000000000007" + "3520" + "3920" + "67" + "757365727300" + "11223344556677880000000000000001",
			Message{Range: 2, Origin: 7, Previous: 5, Number: 9, Kind: 'g'}, "",
			nil,
		},
		"a group of a later version": {nil, "c1010000000000000007" + "3520" + "3920" + "677573657273001122", Message{Range: 1, Origin: 7, Previous: 5, Number: 9}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := hex.DecodeString(c.golden)
			if err != nil {
				t.Fatal(err)
			}
			if c.written != nil && string(c.written) != string(b) {
				t.Errorf("it is written as %x, want %x", c.written, b)
			}
			m, err := Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			var hashes []uint64
			m.Each(func(h uint64) { hashes = append(hashes, h) })
			loader := ""
			if m.Kind == loaderKind {
				loader = string(m.Body)
			}
			m.Body = nil
			if loader != c.loader || !reflect.DeepEqual(m, c.want) || !slices.Equal(hashes, c.hashes) {
				t.Errorf("%+v %q %x, want %+v %q %x", m, loader, hashes, c.want, c.loader, c.hashes)
			}
		})
	}
}

func TestMalformedMessages(t *testing.T) {
	good := string(encode(1, 7, "5 9 ", appendKeys(nil, []uint64{1})))
	if _, err := Decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	with := func(numbers string) string { return good[:headSize] + numbers + good[headSize+len("5 9 "):] }
	for name, b := range map[string]string{
		"empty":                  "",
		"a head only":            good[:headSize],
		"half a head":            good[:headSize-1],
		"another version":        "\xC2" + good[1:],
		"a range too many":       good[:1] + string(rune(conn.Ranges)) + good[2:],
		"the last range":         good[:1] + "\xFF" + good[2:],
		"no number":              with(" 9 "),
		"one number":             with("5 "),
		"numbers without an end": good[:headSize] + "5 9",
		"nothing behind":         good[:headSize] + "5 9 ",
		"two spaces":             with("5  9 "),
		"a space before":         with(" 5 9 "),
		"letters":                with("5 x "),
		"negative":               with("5 -9 "),
		"a sign":                 with("+5 9 "),
		"a fraction":             with("5 9.5 "),
		"an exponent":            with("5 1e3 "),
		"hexadecimal":            with("5 0x9 "),
		"underscores":            with("5 1_0 "),
		"zero":                   with("5 0 "),
		"2^53":                   with("5 9007199254740992 "),
		"2^53 before":            with("9007199254740992 9 "),
		"too long":               with("5 00000000000000009 "),
		"too long before":        with("00000000000000005 9 "),
		"endless":                with(strings.Repeat("1", 1<<20) + " 9 "),
		"no digits":              with("nan inf "),
	} {
		if m, err := Decode([]byte(b)); !errors.Is(err, errMalformed) || !reflect.DeepEqual(m, Message{}) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// A name that is no loader's of ours may be as long as a message.
func TestALongLoaderNameIsNotKept(t *testing.T) {
	m, err := Decode(encode(1, 7, "5 9 ", appendLoader(nil, strings.Repeat("x", 1<<20))))
	if err != nil || len(m.Body) > maxName {
		t.Errorf("%d bytes, %v", len(m.Body), err)
	}
	m, err = Decode(encode(1, 7, "5 9 ", []byte("g"+strings.Repeat("x", 1<<20))))
	if err != nil || len(m.Body) > 8+maxName {
		t.Errorf("%d bytes, %v", len(m.Body), err)
	}
}

func TestDecodeAllocatesABoundedAmount(t *testing.T) {
	for name, b := range map[string][]byte{
		"keys":   encode(1, 7, "1700000000000000 1700000000000001 ", appendKeys(nil, make([]uint64, 1<<16))),
		"loader": encode(1, 7, "1700000000000000 1700000000000001 ", appendLoader(nil, strings.Repeat("x", 1<<20))),
		"digits": encode(1, 7, strings.Repeat("1", 1<<20), nil),
		"kind":   encode(1, 7, "1 2 ", make([]byte, 1<<20)),
	} {
		const runs = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			m, _ := Decode(b)
			m.Each(func(uint64) {})
		}
		runtime.ReadMemStats(&after)
		if per := (after.TotalAlloc - before.TotalAlloc) / runs; per > 4*maxName {
			t.Errorf("%s: %d bytes for %d", name, per, len(b))
		}
	}
}

var corpus = [][]byte{
	{},
	encode(0, 0, "0 1 ", appendKeys(nil, nil)),
	encode(1, 7, "5 9 ", appendKeys(nil, []uint64{1, 1<<64 - 1})),
	encode(15, 1<<63, "1700000000000000 9007199254740991 ", appendKeys(nil, make([]uint64, 100))),
	encode(15, 1<<63, "1700000000000000 1700000000000001 ", appendLoader(nil, "users")),
	encode(15, 1<<63, "1700000000000000 1700000000000001 ", []byte("g\x00\x01\x02\x03\x04\x05\x06\x07users")),
	encode(2, 3, "4 5 ", []byte("g of it")),
	encode(2, 3, "4 5 ", []byte("z of another version")),
	encode(2, 0, "4 7 ", []byte("n4 5 1 originonhashhash5 7 2 originonhashhashhashhash")),
	encode(2, 0, "4 7 ", []byte("n4 5 0 originon5 7 9 originonhash")),
	encode(2, 3, "4 5 ", []byte("k of another version")),
	[]byte("\xC2 another version"),
	[]byte("9007199254740991 9007199254740992 "),
}

func FuzzDecode(f *testing.F) {
	for _, b := range corpus {
		f.Add(b)
	}
	f.Fuzz(checkDecode)
}

// The same for millions of inputs, without a look at what they cover.
func TestDecodeMillions(t *testing.T) {
	n := 100_000
	if testenv.Accepting {
		n = 5_000_000
	}
	read := 0
	for b := range testenv.Noise(2, n, corpus...) {
		if checkDecode(t, b); t.Failed() {
			t.Fatalf("%x", b)
		}
		if _, err := Decode(b); err == nil {
			read++
		}
	}
	t.Logf("%d inputs, %d of them messages", n, read)
	if read < n/10 || read > n*9/10 {
		t.Error("the inputs do not fit")
	}
}

// checkDecode decodes b: it is refused, or what it says is within bounds, and is the same when it
// is written again.
func checkDecode(t *testing.T, b []byte) {
	before := string(b)
	m, err := Decode(b)
	if string(b) != before {
		t.Fatal("it was changed")
	}
	if err != nil {
		if !errors.Is(err, errMalformed) || !reflect.DeepEqual(m, Message{}) {
			t.Errorf("%+v, %v", m, err)
		}
		return
	}
	if m.Range < 0 || m.Range >= conn.Ranges || m.Number == 0 || m.Number > maxNumber || m.Previous > maxNumber ||
		m.Kind == loaderKind && len(m.Body) > maxName || m.Kind == groupKind && !hasGroups(m.Body) {
		t.Errorf("out of bounds: %+v", m)
	}
	if m.Kind == 0 && m.Body != nil {
		t.Errorf("unknown, and known: %+v", m)
	}
	parts := 0
	for part := range m.Parts() {
		parts++
		if part != &m && (!canBeGathered(part.Kind, part.Body) || part.Number == 0) {
			t.Errorf("a gathered announcement: %+v", part)
		}
	}
	if m.Kind != gatheredKind && parts != 1 {
		t.Errorf("%d parts of a message that is one announcement", parts)
	}
	var hashes []uint64
	m.Each(func(h uint64) { hashes = append(hashes, h) })
	if m.Kind == keysKind && len(hashes)*8 != len(m.Body) || m.Kind != keysKind && hashes != nil {
		t.Errorf("%d hashes in %d bytes", len(hashes), len(m.Body))
	}
	if m.Kind == 0 || m.Kind == loaderKind && len(m.Body) >= maxName {
		return
	}
	body := append([]byte{m.Kind}, m.Body...)
	if m.Kind == keysKind {
		body = appendKeys(nil, hashes)
	}
	again, err := Decode(encode(m.Range, m.Origin, decimal(m.Previous)+" "+decimal(m.Number)+" ", body))
	if err != nil || !reflect.DeepEqual(again, m) {
		t.Errorf("%+v, written again it is %+v, %v", m, again, err)
	}
}

// appendKeys appends the part of a message after the numbers, for keys.
func appendKeys(dst []byte, hashes []uint64) []byte {
	dst = append(dst, keysKind)
	for _, h := range hashes {
		dst = binary.BigEndian.AppendUint64(dst, h)
	}
	return dst
}
