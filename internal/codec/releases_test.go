package codec_test

import (
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/msgpack"
)

var record = flag.Bool("record", false, "record what this release of Go writes, in testdata")

// stored is a row as programs cache, with the parts that releases of Go could encode differently.
type (
	stored struct {
		ID      int64  `json:"id"`
		Upper   int    `json:"ID"`
		Name    string `json:"b<c"`
		Quoted  int64  `json:",string"`
		Text    string `json:",string"`
		Empty   []int  `json:",omitempty"`
		Zero    zeroer `json:",omitzero"`
		Took    time.Duration
		Born    time.Time
		Ended   *time.Time
		Bytes   []byte
		Array   [4]byte
		Octets  []octet
		Nil     []string
		NilMap  map[string]int
		Pointer **int
		Number  json.Number
		Note    sql.NullString
		Addr    netip.Addr
		Floats  []float64
		Float32 float32
		Any     any
		*Embedded
		Kids []stored
	}
	zeroer   struct{ N int }
	octet    byte
	Embedded struct{ Shared, Other string }
	wide     struct{ A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R string }
)

func (z zeroer) IsZero() bool { return z.N == 0 }

// An entry is a value as a program writes it, and the check of what another program reads.
type entry struct {
	name    string
	encode  func(c codec.Custom) ([]byte, error)
	decodes func(c codec.Custom, b []byte) error
}

func entryOf[V any](name string, v V) entry {
	return entry{
		name,
		func(c codec.Custom) ([]byte, error) { return c.Encode(&v) },
		func(c codec.Custom, b []byte) error {
			var back V
			if err := c.Decode(b, &back); err != nil {
				return err
			}
			if !reflect.DeepEqual(v, back) {
				return fmt.Errorf("%+v came back as %+v", v, back)
			}
			return nil
		},
	}
}

func entries() []entry {
	n, moment := 5, time.Date(2026, 8, 11, 1, 2, 3, 456789000, time.UTC)
	p, zoned := &n, moment.In(time.FixedZone("", 5400))
	full := stored{
		ID: math.MaxInt64, Upper: 3, Name: "<a href=\"x\">&</a>\u2028\u2029", Quoted: -7, Text: "a\"b<",
		Zero: zeroer{7}, Took: time.Hour, Born: moment, Ended: &moment,
		Bytes: []byte{0, 255, 254}, Array: [4]byte{1, 2, 255}, Octets: []octet{9, 200}, Pointer: &p, Number: "1e400",
		Note: sql.NullString{String: "x", Valid: true},
		Addr: netip.MustParseAddr("fe80::1%eth0"), Floats: []float64{0, math.Copysign(0, -1), 1e20, 1e21, 1e-6, 1e-7,
			0.1, math.MaxFloat64, math.SmallestNonzeroFloat64}, Float32: 0.1,
		Any: map[string]any{"b": []any{1.5, nil, true, "x"}, "a": map[string]any{}}, Embedded: &Embedded{"s", "o"},
		Kids: []stored{{Number: "0"}},
	}
	return []entry{
		entryOf("row", full), entryOf("pointer", &full), entryOf("nil", (*stored)(nil)), entryOf("no rows", []stored{}),
		entryOf("nil rows", []stored(nil)),
		entryOf("text", "\x00\x01\b\f\n\r\t\x1f\x7f\"\\/<>& ö \u2028 \u2029 \ufffd \U0001f600 \ue000"),
		entryOf("texts", []string{"", `\ufffd`, "\ufffd", "null", "[]"}),
		entryOf("keys", map[string]int{"a<b": 1, "\ufffd": 2, "": 3, "ö": 4, "\U0001f600": 5, "\ue000": 6, "A": 7,
			"a": 8}),
		entryOf("integers", map[int]uint64{-1: math.MaxUint64, 0: 0, 10: 1, 9: 2}),
		entryOf("short", map[int32]string{-1: "a", 7: "b"}),
		entryOf("addresses", map[netip.Addr]int{netip.MustParseAddr("10.0.0.1"): 1}),
		entryOf("structs", map[string]wide{"a": {A: "x", R: "y"}}),
		entryOf("pointers", map[string]*wide{"a": {B: "x"}, "b": nil}),
		entryOf("numbers", map[uint64]wide{7: {C: "x"}}),
		entryOf("bools", []bool{true, false}), entryOf("floats", []float32{0.1, 1e21, 3.4e38}), entryOf("time", moment),
		entryOf("zone", zoned), entryOf("array", [2][]int{{1}, nil}),
		entryOf("any", any(map[string]any{"z": 1.0, "a": "<"})),
		entryOf("empty", struct{}{}), entryOf("signed zero", math.Copysign(0, -1)), entryOf("bytes", []byte("x")),
		entryOf("words", [][]byte{nil, {}, {1}}),
	}
}

// Each supported release of Go reads the entries that programs of the others have written.
func TestEntriesOfOtherReleases(t *testing.T) {
	release := regexp.MustCompile(`go1\.\d+`).FindString(runtime.Version())
	codecs := map[string]codec.Custom{"JSON": codec.Builtin(codec.JSON), "MsgPack": msgpack.Codec}
	list := append(entries(), entryOf("big", big.NewInt(-1<<62)))
	if *record {
		recordEntries(t, release, list, codecs)
	}
	files, err := filepath.Glob("testdata/entries/go1.*.txt")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	foundOwn := false
	for _, file := range files {
		version := strings.TrimSuffix(filepath.Base(file), ".txt")
		foundOwn = foundOwn || version == release
		written, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := make(map[string]string)
		for line := range strings.Lines(string(written)) {
			name, payload, _ := strings.Cut(strings.TrimSpace(line), ": ")
			lines[name], _ = strconv.Unquote(payload)
		}
		for _, e := range list {
			for name, c := range codecs {
				payload, ok := lines[name+" "+e.name]
				if !ok {
					if b, err := e.encode(c); err == nil && name == "JSON" {
						t.Errorf("%s lacks %s %s, which is %q", file, name, e.name, b)
					}
					continue
				}
				if err := e.decodes(c, []byte(payload)); err != nil {
					t.Errorf("%s of %s, written with %s: %v", e.name, name, version, err)
				}
			}
		}
	}
	if !foundOwn {
		t.Errorf("no entries of %s are recorded: go test ./internal/codec -run %s -record", release, t.Name())
	}
}

func recordEntries(t *testing.T, release string, list []entry, codecs map[string]codec.Custom) {
	var lines strings.Builder
	for _, e := range list {
		for _, name := range []string{"JSON", "MsgPack"} {
			if b, err := e.encode(codecs[name]); err == nil && e.decodes(codecs[name], b) == nil {
				fmt.Fprintf(&lines, "%s %s: %q\n", name, e.name, b)
			} else {
				t.Log(name, e.name, err, e.decodes(codecs[name], b))
			}
		}
	}
	if err := os.MkdirAll("testdata/entries", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("testdata/entries/"+release+".txt", []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}
