package keys

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unsafe"

	"github.com/cacheaside/cacheaside/internal/codec/carry"
)

// Identity describes when two keys of a type are the same key.
//
// Keys with the same text are the same key, because texts name what is cached. Maps and the
// memory tier compare keys by ==, which costs less. Canonical and ByText make the two agree.
type Identity[K comparable] struct {
	// Canonical returns the key that represents all keys equal to its argument: a time in UTC
	// without its monotonic clock, and 0 for a negative zero. If it is nil, each key represents
	// itself.
	Canonical func(K) K

	// ByText reports that equal keys need not be ==, because K contains pointers or interfaces.
	// Such keys are compared by their texts only, and the memory that they point to can change.
	ByText bool
}

// Identify returns the Identity of keys of type K. custom reports whether the user makes their
// texts. If it does, Identify never fails. Otherwise it fails for a K that contains pointers or
// interfaces, except time.Time and the types of net/netip, and for a K whose MarshalText leaves out
// fields.
func Identify[K comparable](custom bool) (id Identity[K], err error) {
	t := reflect.TypeFor[K]()
	w := walk{root: t}
	w.look(t, 0, "")
	id.ByText = w.shared != "" || custom && len(w.times) > 0
	switch {
	case custom:
		w.times = nil // the user's function may write the zone
	case w.shared != "":
		return id, fmt.Errorf("keys of type %s %s: equal keys need not be ==, and a caller could change a cached "+
			"one: use a type without pointers, such as a string, or set LoaderOptions.Key", t, w.shared)
	default:
		if err := leavesOut[K](); err != nil {
			return id, err
		}
	}
	if len(w.times)+len(w.floats) > 0 {
		id.Canonical = canonical[K](w.times, w.floats)
	}
	return id, nil
}

// canonical returns Identity.Canonical for a K that has times and floats at these offsets.
func canonical[K comparable](times []uintptr, floats []float) func(K) K {
	return func(key K) K {
		address := unsafe.Pointer(&key)
		for _, offset := range times {
			t := (*time.Time)(unsafe.Add(address, offset))
			*t = t.UTC()
		}
		for _, f := range floats {
			if f.size == 4 {
				clearZero((*float32)(unsafe.Add(address, f.offset)))
			} else {
				clearZero((*float64)(unsafe.Add(address, f.offset)))
			}
		}
		return key
	}
}

// clearZero makes a negative zero positive.
func clearZero[F float32 | float64](f *F) {
	if *f == 0 {
		*f = 0
	}
}

// walk finds what a type of keys contains.
type walk struct {
	root   reflect.Type
	times  []uintptr // offsets of values that are laid out as a time.Time
	floats []float
	shared string // what refers to other memory, the first only: "are pointers", "contain *T (field F)"
}

// float is a floating-point number in a key, or a half of a complex one.
type float struct{ offset, size uintptr }

var moment = reflect.TypeFor[time.Time]()

func (w *walk) look(t reflect.Type, offset uintptr, path string) {
	switch k := t.Kind(); k {
	case reflect.Float32, reflect.Float64:
		w.floats = append(w.floats, float{offset, t.Size()})
	case reflect.Complex64, reflect.Complex128:
		half := t.Size() / 2
		w.floats = append(w.floats, float{offset, half}, float{offset + half, half})
	case reflect.Pointer, reflect.UnsafePointer, reflect.Chan, reflect.Interface:
		w.refer(t, path)
	case reflect.Array:
		w.array(t, offset, path)
	case reflect.Struct:
		switch {
		case t.ConvertibleTo(moment):
			w.times = append(w.times, offset)
			return
		case t.PkgPath() == "unique" && strings.HasPrefix(t.Name(), "Handle["): // equal values have one pointer
			return
		}
		for f := range t.Fields() {
			if f.Name != "_" { // == ignores it
				w.look(f.Type, offset+f.Offset, strings.TrimPrefix(path+"."+f.Name, "."))
			}
		}
	}
}

func (w *walk) array(t reflect.Type, offset uintptr, path string) {
	times, floats := len(w.times), len(w.floats)
	for i := range t.Len() {
		w.look(t.Elem(), offset+uintptr(i)*t.Elem().Size(), path)
		if len(w.times) == times && len(w.floats) == floats {
			return // the others have nothing either
		}
	}
}

func (w *walk) refer(t reflect.Type, path string) {
	switch {
	case w.shared != "":
	case path != "":
		w.shared = fmt.Sprintf("contain %s (field %s)", t, path)
	case t != w.root:
		w.shared = fmt.Sprintf("contain %s", t)
	case t.Kind() == reflect.Interface:
		w.shared = "are interfaces"
	default:
		w.shared = "are pointers"
	}
}

var textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()

// leavesOut returns an error if K has its MarshalText from a type that it embeds, such as a
// time.Time, and has other fields: keys that differ in those would have one text.
func leavesOut[K comparable]() error {
	t := reflect.TypeFor[K]()
	if t.Kind() != reflect.Struct || !t.Implements(textMarshaler) {
		return nil
	}
	text := func(pointer any) ([]byte, error) { return pointer.(encoding.TextMarshaler).MarshalText() }
	for i := range t.NumField() {
		inner := t.Field(i).Type
		if !t.Field(i).Anonymous || !reflect.PointerTo(inner).Implements(textMarshaler) {
			continue
		}
		if lost, _ := carry.LeftOut(reflect.New(t), i, inner, text, true); lost != "" {
			return fmt.Errorf("keys of type %s have the MarshalText of the embedded %s, which leaves out the field "+
				"%s: give the type a MarshalText of its own, or set LoaderOptions.Key", t, inner, lost)
		}
	}
	return nil
}
