package carry_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	ugorji "github.com/ugorji/go/codec"

	"github.com/cacheaside/cacheaside/internal/codec/carry"
)

// The types of the table. The methods of each do what they say.
//
//nolint:unused // unexported fields are found by reflection
type (
	kind   string
	number int
	octet  byte

	address struct {
		Street string
		zip    string
	}
	street struct{ Street string }
	User   struct {
		Name    string
		Address address
	}
	private struct{ n int }
	Public  struct{ N int }
	Empty   struct{}
	none    struct{}

	tree struct {
		Name  string
		Left  *tree
		Kids  []tree
		ByKey map[string]*tree
	}
	lostTree struct {
		Kids []*lostTree
		Map  map[string][]lostTree
		n    int
	}
	self struct {
		*self
		A int
	}
	Self struct {
		*Self
		B int
	}
	users       []User
	page[T any] struct {
		Rows []T
		Next string
	}
	hidden[T any] struct {
		Rows []T
		next string
	}

	// Embedded.
	embedsPrivate   struct{ street }
	embedsLost      struct{ private }
	embedsPointer   struct{ *street }
	EmbedsPublic    struct{ Public }
	embedsPublicPtr struct{ *Public }
	embedsEmptyPtr  struct{ *Empty }
	embedsTagged    struct {
		street `json:"street"`
	}
	embedsTaggedPublic struct {
		Public `json:"public"`
	}
	embedsKind  struct{ kind }
	Kind        string
	EmbedsKind  struct{ Kind }
	embedsKindP struct{ *Kind }
	shadows     struct {
		Public
		N int
	}
	left  struct{ X, Y int }
	right struct{ Y, Z int }
	twice struct {
		left
		right
	}
	tagged struct {
		Y int `json:"Y" msgpack:"y"`
	}
	clear struct {
		left
		tagged
	}
	deeper struct {
		twiceIn
		Y int
	}
	twiceIn struct{ X, Z int }
	fold    struct {
		A int `json:"id"`
		B int `json:"ID"`
	}
	swap struct {
		A int `json:"B"`
		B int `json:"A"`
	}

	// Methods.
	text      struct{ n int } // both ways, by *text
	byValue   struct{ n int } // both ways, encoded by byValue
	raw       struct{ n int } // JSON, both ways
	binary    struct{ n int } // binary, both ways
	selfer    struct{ n int } // MessagePack, both ways
	readsText struct{ N int }
	withReads struct {
		readsText
		A int
	}
	ownReads struct {
		readsText
		A int
	} // reads itself
	embedsReads struct {
		readsText `json:"r"`
	}
	readsOnlyText struct{ N int }
	readsString   string
	floating      float32
	writesText    number
	writesJSON    struct{ N int }
	writesBinary  struct{ N int }
	textInt       number             // both ways, by *textInt
	textInt2      number             // both ways, encoded by textInt2
	textString    kind               // both ways
	textKey       struct{ A, B int } // both ways, by itself

	withTime struct {
		time.Time
		A int
	}
	onlyTime   struct{ time.Time }
	pointsTime struct{ *time.Time }
	twoTimes   struct {
		time.Time
		text
	}
	ownTime struct {
		time.Time
		A int
	} // both ways in each
	deepTime struct {
		onlyTime
		B int
	}
	deepOnly   struct{ onlyTime }
	withIface  struct{ json.Marshaler }
	withBinary struct {
		binary
		A int
	}
	onlyBinary struct{ binary }
	withSelfer struct {
		selfer
		A int
	}
	generic[T any] struct {
		time.Time
		A T
	} // both ways in JSON
)

// rawText and rawBytes are JSON, as the types of other libraries for such columns.
type (
	rawText  string
	rawBytes []byte
)

func (r rawText) MarshalJSON() ([]byte, error)   { return []byte(r), nil }
func (r *rawText) UnmarshalJSON(b []byte) error  { *r = rawText(b); return nil }
func (r rawBytes) MarshalJSON() ([]byte, error)  { return r, nil }
func (r *rawBytes) UnmarshalJSON(b []byte) error { *r = bytes.Clone(b); return nil }

func (t *text) MarshalText() ([]byte, error)       { return strconv.AppendInt(nil, int64(t.n), 10), nil }
func (t *text) UnmarshalText(b []byte) (err error) { t.n, err = strconv.Atoi(string(b)); return err }

func (t byValue) MarshalText() ([]byte, error)        { return strconv.AppendInt(nil, int64(t.n), 10), nil }
func (t *byValue) UnmarshalText(b []byte) (err error) { t.n, err = strconv.Atoi(string(b)); return err }

func (r raw) MarshalJSON() ([]byte, error)        { return strconv.AppendInt(nil, int64(r.n), 10), nil }
func (r *raw) UnmarshalJSON(b []byte) (err error) { r.n, err = strconv.Atoi(string(b)); return err }

func (t binary) MarshalBinary() ([]byte, error) { return strconv.AppendInt(nil, int64(t.n), 10), nil }
func (t *binary) UnmarshalBinary(b []byte) (err error) {
	t.n, err = strconv.Atoi(string(b))
	return err
}

func (s selfer) CodecEncodeSelf(e *ugorji.Encoder)  { e.MustEncode(s.n) }
func (s *selfer) CodecDecodeSelf(d *ugorji.Decoder) { d.MustDecode(&s.n) }

func (r *readsText) UnmarshalJSON(b []byte) error {
	type plain readsText
	return json.Unmarshal(b, (*plain)(r))
}

func (o *ownReads) UnmarshalJSON(b []byte) error {
	var plain struct{ N, A int }
	err := json.Unmarshal(b, &plain)
	o.N, o.A = plain.N, plain.A
	return err
}

func (r *readsOnlyText) UnmarshalText(b []byte) (err error) {
	r.N, err = strconv.Atoi(string(b))
	return err
}

func (r *readsString) UnmarshalText(b []byte) error { *r = readsString(b); return nil }

func (w writesText) MarshalText() ([]byte, error)     { return []byte("x" + strconv.Itoa(int(w))), nil }
func (w writesJSON) MarshalJSON() ([]byte, error)     { return []byte(strconv.Itoa(w.N)), nil }
func (w writesBinary) MarshalBinary() ([]byte, error) { return []byte(strconv.Itoa(w.N)), nil }

func (t *textInt) MarshalText() ([]byte, error) { return []byte("x" + strconv.Itoa(int(*t))), nil }
func (t *textInt) UnmarshalText(b []byte) error {
	if !strings.HasPrefix(string(b), "x") {
		return errors.New("no x")
	}
	n, err := strconv.Atoi(string(b[1:]))
	*t = textInt(n)
	return err
}

func (t textInt2) MarshalText() ([]byte, error)  { return (*textInt)(&t).MarshalText() }
func (t *textInt2) UnmarshalText(b []byte) error { return (*textInt)(t).UnmarshalText(b) }

func (t textString) MarshalText() ([]byte, error)  { return []byte(t), nil }
func (t *textString) UnmarshalText(b []byte) error { *t = textString(b); return nil }

func (t textKey) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d/%d", t.A, t.B), nil }
func (t *textKey) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "%d/%d", &t.A, &t.B)
	return err
}

// ownHidden has methods of its own for a field that is not exported.
type ownHidden struct {
	time.Time
	a int
}

func (o ownHidden) MarshalJSON() ([]byte, error) { return json.Marshal(ownTimeFields{o.Time, o.a}) }
func (o *ownHidden) UnmarshalJSON(b []byte) error {
	var f ownTimeFields
	err := json.Unmarshal(b, &f)
	o.Time, o.a = f.At, f.A
	return err
}

// ownSame has methods of its own that encode a zero value as what it embeds.
type ownSame struct {
	raw
	Unit string
}

func (o ownSame) MarshalJSON() ([]byte, error) {
	if o.Unit == "" {
		return o.raw.MarshalJSON()
	}
	return json.Marshal([2]string{strconv.Itoa(o.n), o.Unit})
}

func (o *ownSame) UnmarshalJSON(b []byte) error {
	var parts [2]string
	if json.Unmarshal(b, &parts) != nil {
		return o.raw.UnmarshalJSON(b)
	}
	o.Unit = parts[1]
	return o.raw.UnmarshalJSON([]byte(parts[0]))
}

// ownOneWay encodes itself, and is decoded by what it embeds.
type ownOneWay struct{ time.Time }

func (o ownOneWay) MarshalJSON() ([]byte, error) { return json.Marshal(o.Format(time.DateOnly)) }

type ownTimeFields struct {
	At time.Time
	A  int
}

func (o ownTime) MarshalJSON() ([]byte, error) { return json.Marshal(ownTimeFields{o.Time, o.A}) }
func (o *ownTime) UnmarshalJSON(b []byte) error {
	var f ownTimeFields
	err := json.Unmarshal(b, &f)
	o.Time, o.A = f.At, f.A
	return err
}
func (o ownTime) MarshalBinary() ([]byte, error)  { return o.MarshalJSON() }
func (o *ownTime) UnmarshalBinary(b []byte) error { return o.UnmarshalJSON(b) }

type genericFields[T any] struct {
	At time.Time
	A  T
}

func (g *generic[T]) MarshalJSON() ([]byte, error) {
	return json.Marshal(genericFields[T]{g.Time, g.A})
}
func (g *generic[T]) UnmarshalJSON(b []byte) error {
	var f genericFields[T]
	err := json.Unmarshal(b, &f)
	g.Time, g.A = f.At, f.A
	return err
}

type namedPointer *raw

// row is a type, and the parts of it that JSON and MessagePack lose first, or "".
type row struct {
	t          reflect.Type
	json, pack string
}

func rowOf[V any](json, pack string) row { return row{reflect.TypeFor[V](), json, pack} }

func both[V any](path string) row { return rowOf[V](path, path) }

// release returns before, or after if encoding/json is built on version 2.
func release(before, after string) string {
	if carry.V2 {
		return after
	}
	return before
}

// rawMessage is the name of the type json.RawMessage.
var rawMessage = reflect.TypeFor[json.RawMessage]().Name()

var rows = []row{
	// Kinds.
	both[bool](""), both[int](""), both[uint64](""), both[float32](""), both[uintptr](""), both[string](""),
	both[kind](""), both[[]byte](""),
	both[[]octet](""), both[[4]byte](""), both[[4]octet](""), both[*int](""), both[**int](""), both[[]*string](""),
	both[[0]chan int](""), both[struct{}](""), both[Empty](""),
	both[map[string]int](""), both[map[number]kind](""), both[map[kind][]int](""), both[map[string][3]byte](""),
	both[any](""), both[map[string]any](""), both[[]any](""),
	both[chan int]("chan int"), both[func()]("func()"), both[complex64]("complex64"), both[[]complex128]("complex128"),
	both[unsafe.Pointer]("Pointer"), both[uint8](""),
	both[map[string]chan int]("map[string]chan int"), both[struct{ C chan int }]("C"), both[struct{ F func() }]("F"),
	both[struct{ P unsafe.Pointer }]("P"),
	both[error]("error"), both[fmt.Stringer]("Stringer"), both[struct{ Err error }]("Err"),
	both[struct{ Ctx context.Context }]("Ctx"), both[[]io.Reader]("Reader"),
	// Keys.
	both[map[uintptr]int](""), rowOf[map[bool]int]("map[bool]int", ""),
	rowOf[map[float64]int](release("map[float64]int", ""), release("", "map[float64]int")),
	rowOf[map[floating][]int](release("map[carry_test.floating][]int", ""),
		release("", "map[carry_test.floating][]int")),
	rowOf[map[struct{ F float64 }]int]("map[struct { F float64 }]int", ""), rowOf[map[[2]int]int]("map[[2]int]int", ""),
	rowOf[map[Public]int]("map[carry_test.Public]int", ""), rowOf[map[any]int]("map[interface {}]int", ""),
	rowOf[map[private]int]("map[carry_test.private]int", "private.n"), both[map[*int]int]("map[*int]int"),
	both[struct{ M map[*int]int }]("M[]"),
	rowOf[map[struct{ P *int }]int]("map[struct { P *int }]int", "P"),
	rowOf[map[writesText]int]("map[carry_test.writesText]int", ""), rowOf[map[textInt]int]("map[carry_test.textInt]int",
		""), both[map[textInt2]int](""), both[map[textString]int](""), both[map[textKey]int](""),
	both[map[netip.Addr]int](""), rowOf[map[*textKey]int]("map[*carry_test.textKey]int", "map[*carry_test.textKey]int"),
	// Fields.
	both[User]("User.Address.zip"), both[*User]("User.Address.zip"), both[[]User]("User.Address.zip"),
	both[map[string]*User]("User.Address.zip"), both[users]("users[].Address.zip"),
	both[struct{ A []map[string]*[2]address }]("A[][][].zip"), both[private]("private.n"), both[street](""),
	both[tree](""), both[lostTree]("lostTree.n"), both[page[street]](""),
	both[page[address]]("page[github.com/cacheaside/cacheaside/internal/codec/carry_test.address].Rows[].zip"),
	both[hidden[int]]("hidden[int].next"), both[sync.Mutex]("Mutex.mu"), both[struct{ Mu sync.Mutex }]("Mu.mu"),
	both[struct{ N atomic.Int64 }]("N.v"),
	both[struct {
		_ [8]byte
		A int
	}](""), both[struct {
		none none
		A    int
	}](""), both[struct {
		no [0]func()
		A  int
	}](""), both[struct{ p *none }]("p"),
	both[struct {
		A int `json:"-"`
	}]("A"), rowOf[struct {
		A int `json:"-" msgpack:"a"`
	}]("A", ""), rowOf[struct {
		A int `msgpack:"-"`
	}]("", "A"), rowOf[struct {
		A int `codec:"-"`
	}]("", "A"), rowOf[struct {
		A int `json:"-,"` //nolint:staticcheck // the name is "-"
	}]("", ""),
	both[struct {
		A none `json:"-"`
	}](""), both[struct {
		A int `json:"a,omitempty"`
	}](""), both[struct {
		A []int          `json:"a,omitzero"`
		B map[string]int `json:",omitempty"`
	}](""),
	both[struct {
		A int      `json:"a,string"`
		B *float64 `json:",string"`
		C string   `json:",string"`
		D bool     `json:",string"`
		E []int    `json:",string"` //nolint:staticcheck // encoding/json ignores the option
		F **int    `json:",string"` //nolint:staticcheck // likewise
	}](""),
	both[struct {
		N json.Number `json:",string"`
		M json.Number
	}](""), rowOf[struct {
		A textInt2 `json:",string"`
	}](release("A", ""), ""), rowOf[struct {
		A *textInt2 `json:",string"`
	}](release("A", ""), ""), rowOf[struct {
		A time.Duration `json:",string"`
	}]("", ""),
	{same, "A", "B"}, both[fold](""), both[swap](""), both[struct {
		B int `json:"b<c"`
		C int `json:"ö"`
		D int `json:"'quoted'"`
		E int `json:",future"` //nolint:staticcheck // an option that no release knows
	}](""),
	// Tags that two releases read differently.
	rowOf[struct {
		A int "json:\"a\\\"b\""
	}]("A", ""), rowOf[struct {
		A int `json:"😀"`
	}]("A", ""), rowOf[struct {
		A map[string]int `json:",embed"`
	}]("A", ""), rowOf[struct {
		A street `json:",embed"`
	}]("A", ""), rowOf[struct {
		A int `json:",string,"`  //nolint:staticcheck // likewise
		B int `json:",string/x"` //nolint:staticcheck // likewise
	}]("B", ""), rowOf[struct {
		A time.Time `json:",format:DateOnly"`
	}](release("", "A"), ""), rowOf[struct {
		A int `json:"a,case:strict"`
	}]("", ""),
	// Embedded structs.
	both[embedsPrivate](""), both[embedsLost]("embedsLost.private.n"), both[embedsPointer]("embedsPointer.street"),
	both[EmbedsPublic](""), both[embedsPublicPtr](""), both[embedsEmptyPtr]("embedsEmptyPtr.Empty"),
	rowOf[embedsTagged]("", "embedsTagged.street"), both[embedsTaggedPublic](""), both[embedsKind]("embedsKind.kind"),
	both[EmbedsKind](""), both[embedsKindP](""), both[shadows]("shadows.Public.N"),
	rowOf[twice]("twice.left.Y", "twice.right.Y"), rowOf[clear]("clear.left.Y", ""), both[deeper](""),
	both[self]("self.self"), both[Self]("Self.Self"), both[struct{ error }]("error"),
	both[struct{ io.Reader }]("Reader"),
	// Methods.
	rowOf[text]("", "text.n"), rowOf[*text]("", "text.n"), rowOf[[]text]("", "text.n"), rowOf[[2]text]("", "text.n"),
	rowOf[map[string]*text]("", "text.n"), rowOf[map[string]text]("text", "text.n"),
	rowOf[map[string][2]text]("text", "text.n"),
	rowOf[map[string]struct{ T text }]("T", "T.n"), rowOf[map[string][]text]("", "text.n"),
	rowOf[byValue]("", "byValue.n"), rowOf[map[string]byValue]("", "byValue.n"), rowOf[raw]("", "raw.n"),
	rowOf[map[string]raw]("", "raw.n"), rowOf[**raw]("", "raw.n"),
	rowOf[namedPointer](release("raw", ""), "raw.n"), rowOf[struct{ P namedPointer }](release("P", ""), "P.n"),
	rowOf[binary]("binary.n", ""), rowOf[map[string]binary]("binary.n", ""),
	rowOf[map[binary]binary]("map[carry_test.binary]carry_test.binary", ""), rowOf[selfer]("selfer.n", ""),
	rowOf[map[string]*selfer]("selfer.n", ""),
	both[readsText](""), rowOf[withReads]("withReads", ""), both[ownReads](""),
	rowOf[readsOnlyText]("readsOnlyText", ""), both[readsString](""),
	rowOf[embedsReads]("embedsReads.readsText", "embedsReads.readsText"), rowOf[writesText]("writesText", ""),
	rowOf[writesJSON]("writesJSON", ""), rowOf[struct{ W *writesJSON }]("W", ""), both[writesBinary](""),
	both[textInt](""), rowOf[map[string]textInt]("textInt", ""), both[map[string]textInt2](""),
	both[time.Time](""), both[map[string]*time.Time](""), both[[]time.Time](""), both[netip.Addr](""),
	both[struct{ A *netip.Prefix }](""), rowOf[big.Int]("", "Int.neg"), rowOf[*big.Int]("", "Int.neg"),
	rowOf[map[string]big.Int]("Int", "Int.neg"),
	rowOf[struct{ N *big.Int }]("", "N.neg"), rowOf[big.Rat]("", "Rat.a"), rowOf[url.URL]("URL.User.username", ""),
	rowOf[json.RawMessage](rawMessage, ""), rowOf[*json.RawMessage](rawMessage, ""),
	rowOf[map[string][]json.RawMessage](rawMessage, ""), rowOf[struct{ Doc sql.Null[json.RawMessage] }]("Doc.V", ""),
	rowOf[struct{ json.RawMessage }]("RawMessage", ""), rowOf[rawText]("rawText", ""), rowOf[*rawBytes]("rawBytes", ""),
	both[json.Number](""), both[time.Duration](""), both[sql.NullString](""), both[sql.Null[street]](""),
	both[sql.NullTime](""),
	both[sql.Null[address]]("Null[github.com/cacheaside/cacheaside/internal/codec/carry_test.address].V.zip"),
	rowOf[ugorji.Raw]("", "Raw"), rowOf[ugorji.RawExt]("", "RawExt"),
	rowOf[ownHidden]("", "ownHidden.a"), rowOf[ownSame]("", "ownSame.raw.n"), rowOf[ownOneWay]("ownOneWay.Time", ""),
	both[withTime]("withTime.A"), both[onlyTime](""), both[pointsTime]("pointsTime.Time"), both[ownTime](""),
	both[[]ownTime](""), both[deepTime]("deepTime.B"), both[deepOnly](""), both[twoTimes]("twoTimes.text"),
	rowOf[withIface]("withIface", "withIface.Marshaler"), rowOf[withBinary]("withBinary.binary.n", "withBinary.A"),
	rowOf[onlyBinary]("onlyBinary.binary.n", ""), rowOf[withSelfer]("withSelfer.selfer.n", "withSelfer.A"),
	rowOf[generic[int]]("", "generic[int].A"),
	rowOf[*generic[kind]]("", "generic[github.com/cacheaside/cacheaside/internal/codec/carry_test.kind].A"),
	rowOf[struct{ time.Time }]("", ""), rowOf[struct{ T struct{ time.Time } }](release("T", ""), ""),
	rowOf[*struct{ time.Time }]("", ""), rowOf[[]struct{ time.Time }](release("[]struct { time.Time }", ""), ""),
}

// same is a type that go vet does not like.
var same = reflect.StructOf([]reflect.StructField{
	{Name: "A", Type: reflect.TypeFor[int](), Tag: `json:"a"`},
	{Name: "B", Type: reflect.TypeFor[int](), Tag: `json:"a"`},
})
