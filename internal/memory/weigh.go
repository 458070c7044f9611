package memory

import (
	"math"
	"reflect"
	"slices"
	"sync"
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

// Weigh returns how many bytes of memory v holds, with what it points to. It reads plain data only:
// see shape. whole is false if v has parts that it does not read, for which the weight has a
// constant each. Captured variables, the content of channels, and what is beyond the ends of a
// string that was cut from a longer one, do not count. Values that share memory count it each, for
// they may be evicted apart. A value of more than most bytes is TooHeavy, and so is one of more
// than maxSteps parts: it is not weighed to the end.
func Weigh[V any](v V, most int64) (weight int64, whole bool) {
	own, t := int64(unsafe.Sizeof(v)), reflect.TypeFor[V]()
	if flat(t) && own <= most {
		return own, true
	}
	r, s := reflect.ValueOf(&v).Elem(), shapeOf(t)
	w := weigher{steps: simpleSteps, left: most - own}
	if !w.beyond(r, s) && w.steps <= 0 { // it may be a cycle, or what is shared within it may be much
		w = weigher{steps: maxSteps, left: most - own, seen: make(map[part]bool)}
		w.beyond(r, s)
	}
	if w.steps <= 0 || w.left < 0 {
		return TooHeavy, true
	}
	return most - w.left, !w.partial
}

type weigher struct {
	steps   int
	left    int64         // of the most that the value may weigh
	seen    map[part]bool // nil: not noted
	partial bool          // something was not read
}

// part is what is pointed to.
type part struct {
	at  unsafe.Pointer
	n   int
	typ reflect.Type
}

// again reports whether a part has been seen before, and notes it.
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

// takes counts n bytes that were allocated together, and reports whether to go on.
func (w *weigher) takes(n int64) bool {
	w.left -= block(n)
	return w.left >= 0
}

// unread counts for n values of shape s what is not read of them, and reports whether to go on.
func (w *weigher) unread(n int, s *shape) bool {
	if s.unread > 0 && n > 0 {
		w.partial = true
		w.left -= times(n, uintptr(s.unread))
	}
	return w.left >= 0
}

// beyond counts the memory that v refers to, in addition to its own, and reports whether to go on.
func (w *weigher) beyond(v reflect.Value, s *shape) bool {
	if s.flat {
		return true
	}
	if w.steps--; w.steps <= 0 || !w.unread(1, s) {
		return false
	}
	switch s.kind {
	case reflect.String:
		return w.takes(int64(v.Len()))
	case reflect.Pointer:
		return v.IsNil() || w.again(v, 1) || w.takes(s.elem.size) && w.beyond(v.Elem(), s.elem)
	case reflect.Interface:
		if v.IsNil() {
			return true
		}
		of := shapeOf(v.Elem().Type())
		return w.takes(of.size) && w.beyond(v.Elem(), of)
	case reflect.Slice:
		if s.closed {
			return w.takes(times(v.Cap(), uintptr(s.elem.size)))
		}
		if v.IsNil() || w.again(v, v.Len()) {
			return true
		}
		return w.takes(times(v.Cap(), uintptr(s.elem.size))) && w.elements(v, s.elem)
	case reflect.Array:
		return w.elements(v, s.elem)
	case reflect.Map:
		return v.IsNil() || w.again(v, 1) || w.entries(v, s)
	case reflect.Struct:
		for _, f := range s.fields {
			if !w.beyond(v.Field(f.index), f.shape) {
				return false
			}
		}
		return true
	case reflect.Chan:
		return v.IsNil() || w.takes(chanSize+times(v.Cap(), uintptr(s.elem.size)))
	default: // a function, a pointer to what is not known, or what is not read
		return true
	}
}

// chanSize is what a channel takes beside its buffer.
const chanSize = 96

// elements counts what the elements of a slice or array refer to. Strings are so simple that some
// go for one step.
func (w *weigher) elements(v reflect.Value, of *shape) bool {
	switch {
	case of.flat:
		return true
	case of.kind == reflect.Invalid:
		return w.unread(v.Len(), of)
	case of.kind == reflect.String:
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
		if !w.beyond(v.Index(i), of) {
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
func (w *weigher) entries(v reflect.Value, s *shape) bool {
	n, slot := int64(v.Len()), int64(1)
	apart := int64(0) // of an entry
	for _, of := range []*shape{s.key, s.elem} {
		if of.size > inSlot {
			apart += block(of.size)
			slot += wordSize
		} else {
			slot += (of.size + wordSize - 1) &^ (wordSize - 1)
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
	keys, elems := s.key.isRead(), s.elem.isRead()
	if !keys && !w.unread(v.Len(), s.key) || !elems && !w.unread(v.Len(), s.elem) {
		return false
	}
	if !keys && !elems {
		return true
	}
	for it := v.MapRange(); it.Next(); { // what is not to be read is not copied either
		if w.steps--; w.steps <= 0 || keys && !w.beyond(it.Key(), s.key) || elems && !w.beyond(it.Value(), s.elem) {
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
