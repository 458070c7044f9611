package carry_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

// parts are the building blocks of random types. None is a struct with methods that could be
// embedded: reflect.StructOf does not promote them.
var parts = []reflect.Type{
	reflect.TypeFor[int](), reflect.TypeFor[string](), reflect.TypeFor[bool](), reflect.TypeFor[float32](),
	reflect.TypeFor[[]byte](), reflect.TypeFor[kind](), reflect.TypeFor[any](),
	reflect.TypeFor[time.Time](), reflect.TypeFor[big.Int](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[text](),
	reflect.TypeFor[byValue](), reflect.TypeFor[raw](),
	reflect.TypeFor[binary](), reflect.TypeFor[selfer](), reflect.TypeFor[textInt](), reflect.TypeFor[textInt2](),
	reflect.TypeFor[textKey](), reflect.TypeFor[writesText](),
	reflect.TypeFor[private](), reflect.TypeFor[Public](), reflect.TypeFor[Empty](), reflect.TypeFor[tree](),
	reflect.TypeFor[clear](), reflect.TypeFor[twice](),
	reflect.TypeFor[error](), reflect.TypeFor[complex64](), reflect.TypeFor[namedPointer](), reflect.TypeFor[ownTime](),
	reflect.TypeFor[onlyTime](), reflect.TypeFor[uint8](), reflect.TypeFor[octet](),
}

var (
	fieldNames = []string{"A", "B", "C", "Ab", "aB"}
	tags       = []reflect.StructTag{
		"", "", "", `json:"-"`, `json:"a"`, `json:"A,omitempty"`, `json:",omitempty"`, `json:",string"`, `json:"b,omitzero"`, `msgpack:"-" json:"c"`, `codec:"A" json:"d"`, `json:"x y"`, `json:"x\"y"`,
	}
	embeddable = []reflect.Type{
		reflect.TypeFor[Public](), reflect.TypeFor[Empty](), reflect.TypeFor[*Public](),
		reflect.TypeFor[EmbedsPublic](), reflect.TypeFor[Kind](),
	}
)

func randomType(r *rand.Rand, depth int) reflect.Type {
	n := r.IntN(12)
	if depth > 3 {
		n = 0
	}
	switch n {
	case 6:
		return reflect.SliceOf(randomType(r, depth+1))
	case 7:
		return reflect.ArrayOf(r.IntN(3), randomType(r, depth+1))
	case 8:
		if key := randomType(r, depth+2); key.Comparable() {
			return reflect.MapOf(key, randomType(r, depth+1))
		}
	case 9:
		if elem := randomType(r, depth+1); elem.Size() > 0 { // else all may be one
			return reflect.PointerTo(elem)
		}
	case 10, 11:
		return randomStruct(r, depth)
	}
	return parts[r.IntN(len(parts))]
}

func randomStruct(r *rand.Rand, depth int) reflect.Type {
	var fields []reflect.StructField
	for _, i := range r.Perm(len(fieldNames))[:r.IntN(4)] {
		f := reflect.StructField{Name: fieldNames[i], Type: randomType(r, depth+1), Tag: tags[r.IntN(len(tags))]}
		if f.Name[0] == 'a' {
			f.PkgPath = "x"
		}
		fields = append(fields, f)
	}
	if r.IntN(4) == 0 {
		t := embeddable[r.IntN(len(embeddable))]
		name := t.Name()
		if t.Kind() == reflect.Pointer {
			name = t.Elem().Name()
		}
		fields = append(fields, reflect.StructField{Name: name, Type: t, Anonymous: true, Tag: tags[r.IntN(len(tags))]})
	}
	return reflect.StructOf(fields)
}

// The verdict on random types matches the real behaviour of the codec, too.
func TestRandomTypes(t *testing.T) {
	for seed := range uint64(600) {
		randomVerdict(t, seed)
	}
}

func FuzzTypes(f *testing.F) {
	f.Add(uint64(1 << 32))
	f.Fuzz(randomVerdict)
}

func randomVerdict(t *testing.T, seed uint64) {
	typ := randomType(rand.New(rand.NewPCG(seed, 0)), 0)
	for _, c := range carriers {
		agrees(t, c, typ)
	}
	if t.Failed() {
		fmt.Println("seed", seed)
	}
}
