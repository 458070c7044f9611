package keys

import (
	"encoding"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

//nolint:unused // unexported fields are found by reflection
type (
	bucket  struct{ time.Time } // its MarshalText is that of the time
	day     time.Time           // laid out as one
	perShop struct {
		time.Time
		Shop string
	}
	hidden struct {
		time.Time
		shop [2]uint8
	}
	ownText   perShop
	terse     perShop
	withBlank struct {
		time.Time
		_ int
	}
	nested struct {
		days [2]day
		temp float32
		in   struct{ time time.Time }
	}
	optional struct {
		Shop   string
		Parent *int64
	}
)

func (o ownText) MarshalText() ([]byte, error) {
	return []byte(o.Format(time.RFC3339) + " " + o.Shop), nil
}

// MarshalText writes of a zero key what the embedded time does.
func (t terse) MarshalText() ([]byte, error) {
	b, err := t.Time.MarshalText()
	return append(b, t.Shop...), err
}

// identify fails unless keys of type K may be used.
func identify[K comparable](t *testing.T, custom bool) Identity[K] {
	t.Helper()
	id, err := Identify[K](custom)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// oneKey fails unless the keys have one canonical key. They need not be equal by ==.
func oneKey[K comparable](t *testing.T, keys ...K) {
	t.Helper()
	id := identify[K](t, false)
	if id.Canonical == nil || id.ByText {
		t.Fatalf("%T: by text %t", keys[0], id.ByText)
	}
	first := id.Canonical(keys[0])
	for _, key := range keys {
		if got := id.Canonical(key); got != first || id.Canonical(got) != first {
			t.Errorf("%T: %v stands for %v, %v for %v", key, got, key, first, keys[0])
		}
	}
}

func plain[K comparable](t *testing.T, custom bool) {
	t.Helper()
	if id := identify[K](t, custom); id.Canonical != nil || id.ByText {
		t.Errorf("%v: %+v", reflect.TypeFor[K](), id)
	}
}

func byText[K comparable](t *testing.T, want string) {
	t.Helper()
	id := identify[K](t, true)
	if !id.ByText {
		t.Errorf("%v is compared by ==", reflect.TypeFor[K]())
	}
	if want == "" {
		return
	}
	want = fmt.Sprintf("keys of type %v %s: equal keys need not be ==, and a caller could change a cached one: use a "+
		"type without pointers, such as a string, or set LoaderOptions.Key", reflect.TypeFor[K](), want)
	if _, err := Identify[K](false); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// berlin is a location of its own each time that it is called.
func berlin(t *testing.T) *time.Location {
	t.Helper()
	l, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		l = time.FixedZone("CET", 3600)
	}
	return l
}

// Equal instants are one key, even if their zones, locations or monotonic clocks differ.
func TestTimesAreInstants(t *testing.T) {
	now := time.Now() // has a monotonic clock
	same := []time.Time{now, now.UTC(), now.Round(0), now.In(berlin(t)), now.In(berlin(t)),
		now.In(time.FixedZone("", 17)), time.Unix(0, now.UnixNano())}
	oneKey(t, same...)
	var buckets []bucket
	var days []day
	var deep []nested
	for _, moment := range same {
		buckets, days, deep = append(buckets, bucket{moment}), append(days, day(moment)), append(deep,
			nested{days: [2]day{day(moment), day(moment)}, in: struct{ time time.Time }{moment}})
	}
	oneKey(t, buckets...)
	oneKey(t, days...)
	oneKey(t, deep...)
	id := identify[time.Time](t, false)
	for _, other := range []time.Time{now.Add(1), now.Add(-1), {}} {
		if id.Canonical(other) == id.Canonical(now) { //nolint:staticcheck // a map compares with ==
			t.Errorf("%v is %v", other, now)
		}
	}
	if n := testing.AllocsPerRun(100, func() { id.Canonical(now) }); n != 0 && !underRace {
		t.Errorf("%v allocations", n)
	}
}

// A zone offset with seconds, which RFC 3339 cannot write, does not make two instants one.
func TestTimesOfOddZonesDiffer(t *testing.T) {
	a := time.Date(1880, 1, 2, 3, 4, 0, 0, time.FixedZone("LMT", -(4*3600+56*60+2)))
	b := a.Add(32 * time.Second)
	id, encode := identify[time.Time](t, false), encoder[time.Time](t, nil)
	first, err := encode(id.Canonical(a))
	noError(t, err)
	second, err := encode(id.Canonical(b))
	noError(t, err)
	if first != "1880-01-02T08:00:02Z" || second != "1880-01-02T08:00:34Z" {
		t.Error(first, second)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The two zeros are ==.
func TestZerosAreOneKey(t *testing.T) {
	minus := math.Copysign(0, -1)
	oneKey(t, 0, minus)
	oneKey(t, 0, float32(minus))
	oneKey(t, 0, complex(minus, minus), complex(minus, 0), complex(0, minus))
	oneKey(t, 0, complex64(complex(minus, minus)))
	oneKey(t, [2]float64{}, [2]float64{minus, minus}, [2]float64{0, minus})
	oneKey(t, nested{}, nested{temp: float32(minus)})
	id := identify[float64](t, true)
	for _, f := range []float64{0, minus} {
		if got := id.Canonical(f); math.Signbit(got) {
			t.Errorf("%v stands for %v", got, f)
		}
	}
	for _, f := range []float64{1, -1, math.Inf(-1), math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64} {
		if id.Canonical(f) != f {
			t.Error(f)
		}
	}
}

// Keys without pointers are compared by ==, which costs nothing.
func TestKeysThatStandForThemselves(t *testing.T) {
	for _, custom := range []bool{false, true} {
		plain[string](t, custom)
		plain[userID](t, custom)
		plain[int64](t, custom)
		plain[uint8](t, custom)
		plain[bool](t, custom)
		plain[pair](t, custom)
		plain[[16]byte](t, custom)
		plain[[0]float64](t, custom)
		plain[struct{ A, B string }](t, custom)
		plain[struct{ _ *int }](t, custom)
		plain[netip.Addr](t, custom)
		plain[netip.AddrPort](t, custom)
		plain[netip.Prefix](t, custom)
		plain[struct{ A netip.Addr }](t, custom)
		plain[[1 << 20]int8](t, custom)
	}
}

// What is reached through pointers can change, and what is equal need not be ==.
func TestKeysWithPointers(t *testing.T) {
	byText[*big.Int](t, "are pointers")
	byText[*pair](t, "are pointers")
	byText[*url.URL](t, "are pointers")
	byText[any](t, "are interfaces")
	byText[encoding.TextMarshaler](t, "are interfaces")
	byText[reflect.Type](t, "are interfaces")
	byText[chan int](t, "are pointers")
	byText[optional](t, "contain *int64 (field Parent)")
	byText[[2]optional](t, "contain *int64 (field Parent)")
	byText[[2]*int](t, "contain *int")
	byText[struct{ In struct{ Of [2]error } }](t, "contain error (field In.Of)")
	byText[struct{ Zone *time.Location }](t, "contain *time.Location (field Zone)")
	byText[time.Time](t, "") // the user's text may have the zone
	byText[bucket](t, "")
	byText[day](t, "")
	byText[nested](t, "")
}

// A MarshalText that comes with an embedded type does not know the other fields.
func TestEmbeddedTexts(t *testing.T) {
	lost := func(err error, typ, field string) {
		t.Helper()
		want := "keys of type keys." + typ +
			" have the MarshalText of the embedded time.Time, which leaves out the field " + field + ": "
		if err == nil || !strings.HasPrefix(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), "or set LoaderOptions.Key") {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	_, err := Identify[perShop](false)
	lost(err, "perShop", "Shop")
	_, err = Identify[hidden](false)
	lost(err, "hidden", "shop")
	identify[perShop](t, true)
	identify[ownText](t, false)
	identify[terse](t, false)
	identify[withBlank](t, false)
	identify[bucket](t, false)
}
