package memory

import (
	"math"
	"reflect"
	"slices"
	"sync"
	"time"
	"unsafe"
)

// maxSteps bounds what weighing a value may cost, some milliseconds: it is how many parts the value
// may have that refer to other memory.
const maxSteps = 1 << 18

// simpleSteps is how many parts are weighed without noting which have been seen: most values have
// fewer.
const simpleSteps = 4096

// TooHeavy is the weight of what is heavier than it may be, or has more parts than are weighed.
const TooHeavy = math.MaxInt64 / 4

// Every time.Time points to a location, shared by the whole process.
var (
	moment   = reflect.TypeFor[time.Time]()
	location = reflect.TypeFor[*time.Location]()
)

// Weigh tells how many bytes of memory v holds, with what it points to, or more: never less, so far
// as that can be known. Captured variables, the content of channels, and what is beyond the ends
// of a string that was cut from a longer one, it does not see. Values that share memory count it
// each, for they may be evicted apart. A value of more than most bytes is TooHeavy, and so is one
// of more than maxSteps parts: it is not weighed to the end.
func Weigh[V any](v V, most int64) int64 {
	own := int64(unsafe.Sizeof(v))
	r := reflect.ValueOf(&v).Elem()
	w := weigher{steps: simpleSteps, left: most - own}
	if !w.beyond(r) && w.steps <= 0 { // it may be a cycle, or what is shared within it may be much
		w = weigher{steps: maxSteps, left: most - own, seen: make(map[part]bool)}
		w.beyond(r)
	}
	if w.steps <= 0 || w.left < 0 {
		return TooHeavy
	}
	return most - w.left
}

type weigher struct {
	steps int
	left  int64         // of the most that the value may weigh
	seen  map[part]bool // nil: not noted
}

// part is what is pointed to.
type part struct {
	at  unsafe.Pointer
	n   int
	typ reflect.Type
}

// again tells whether a part has been seen, and notes it.
func (w *weigher) again(v reflect.Value, n int) bool {
	if w.seen == nil {
		return false
	}
	p := part{v.UnsafePointer(), n, v.Type()}
	if w.seen[p] {
		return true
	}
	w.seen[p] = true
	return false
}

// takes counts n bytes that were allocated together, and tells whether to go on.
func (w *weigher) takes(n int64) bool {
	w.left -= block(n)
	return w.left >= 0
}

// beyond counts the memory that v refers to, beside its own, and tells whether to go on.
func (w *weigher) beyond(v reflect.Value) bool {
	if flat(v.Type()) {
		return true
	}
	if w.steps--; w.steps <= 0 {
		return false
	}
	switch v.Kind() {
	case reflect.String:
		return w.takes(int64(v.Len()))
	case reflect.Pointer:
		if v.IsNil() || v.Type() == location || w.again(v, 1) {
			return true
		}
		return w.takes(int64(v.Type().Elem().Size())) && w.beyond(v.Elem())
	case reflect.Interface:
		return v.IsNil() || w.takes(int64(v.Elem().Type().Size())) && w.beyond(v.Elem())
	case reflect.Slice:
		if v.IsNil() || w.again(v, v.Len()) {
			return true
		}
		return w.takes(times(v.Cap(), v.Type().Elem().Size())) && w.elements(v)
	case reflect.Array:
		return w.elements(v)
	case reflect.Map:
		return v.IsNil() || w.again(v, 1) || w.entries(v)
	case reflect.Struct:
		for i := range v.NumField() {
			if !w.beyond(v.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Chan:
		return v.IsNil() || w.takes(chanSize+times(v.Cap(), v.Type().Elem().Size()))
	default: // a function, or a pointer to what is not known
		return true
	}
}

// chanSize is what a channel takes beside its buffer.
const chanSize = 96

// elements counts what the elements of a slice or array refer to. Strings are so simple that some
// go for one step.
func (w *weigher) elements(v reflect.Value) bool {
	switch of := v.Type().Elem(); {
	case flat(of):
		return true
	case of.Kind() == reflect.String:
		const atOnce = 16
		for i := range v.Len() {
			if i%atOnce == 0 {
				w.steps--
			}
			if w.steps <= 0 || !w.takes(int64(v.Index(i).Len())) {
				return false
			}
		}
		return true
	}
	for i := range v.Len() {
		if !w.beyond(v.Index(i)) {
			return false
		}
	}
	return true
}

// The sizes of a Swiss map (package internal/runtime/maps).
const (
	mapSize   = 48  // its header
	groupSize = 8   // slots that are allocated together at the least, with a control byte each
	inSlot    = 128 // what is larger is allocated apart, and the slot has a pointer to it
)

// entries counts a map: after it has grown it is as little as 7/16 full. That entries have been
// deleted from it cannot be seen.
func (w *weigher) entries(v reflect.Value) bool {
	n, slot := int64(v.Len()), int64(1)
	apart := int64(0) // of an entry
	for _, t := range []reflect.Type{v.Type().Key(), v.Type().Elem()} {
		if size := int64(t.Size()); size > inSlot {
			apart += block(size)
			slot += wordSize
		} else {
			slot += (size + wordSize - 1) &^ (wordSize - 1)
		}
	}
	slots := int64(groupSize)
	if n > groupSize {
		slots = n*16/7 + groupSize
	}
	w.left -= mapSize + n*apart
	if !w.takes(slots * slot) {
		return false
	}
	if flat(v.Type().Key()) && flat(v.Type().Elem()) {
		return true
	}
	for it := v.MapRange(); it.Next(); {
		if w.steps--; w.steps <= 0 || !w.beyond(it.Key()) || !w.beyond(it.Value()) {
			return false
		}
	}
	return true
}

const wordSize = int64(unsafe.Sizeof(uintptr(0)))

// times is n parts of one size, or more than there can be.
func times(n int, size uintptr) int64 {
	if size > 0 && int64(n) > TooHeavy/int64(size) {
		return TooHeavy
	}
	return int64(n) * int64(size)
}

// Flat tells whether values of T refer to no other memory.
func Flat[T any]() bool { return flat(reflect.TypeFor[T]()) }

// flats knows of types whether they are flat.
var flats sync.Map

// flat tells whether values of t refer to no other memory.
func flat(t reflect.Type) bool {
	switch k := t.Kind(); {
	case t == moment:
		return true
	case k <= reflect.Complex128 && k != reflect.Invalid:
		return true
	case k != reflect.Array && k != reflect.Struct:
		return false
	}
	if known, ok := flats.Load(t); ok {
		return known.(bool)
	}
	is := true
	if t.Kind() == reflect.Array {
		is = t.Len() == 0 || flat(t.Elem())
	} else {
		for f := range t.Fields() {
			is = is && flat(f.Type)
		}
	}
	flats.Store(t, is)
	return is
}

// block is how many bytes the allocator gives for n.
func block(n int64) int64 {
	sizes := sizeClasses()
	if last := sizes[len(sizes)-1]; n > last {
		return (n + pageSize - 1) / pageSize * pageSize
	}
	i, _ := slices.BinarySearch(sizes, n)
	return sizes[i]
}

const pageSize = 8192

// sizeClasses are the sizes of the allocator's blocks, up to that from which on it gives whole
// pages: an append shows them.
var sizeClasses = sync.OnceValue(func() []int64 {
	const largest = 32 << 10
	sizes := []int64{0}
	for n := 0; n < largest; {
		n = cap(append([]byte(nil), make([]byte, n+1)...))
		sizes = append(sizes, int64(n))
	}
	return sizes
})
