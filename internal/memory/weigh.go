package memory

import (
	"math"
	"reflect"
	"slices"
	"sync"
	"unsafe"
)

// maxSteps is the maximum number of parts of a value that are weighed. A part counts if it refers
// to other memory. Weighing that many takes some milliseconds.
const maxSteps = 1 << 18

// simpleSteps is the number of parts that are weighed without recording which have been seen.
// Most values have fewer.
const simpleSteps = 4096

// TooHeavy is the weight of a value that exceeds the limit, or has too many parts.
const TooHeavy = math.MaxInt64 / 4

// Weigh returns the number of bytes of memory that *v holds, including the memory that it points
// to. It takes a pointer so that no value is copied to the heap. It reads only plain data: see
// shape. complete is false if v has parts that are not read; each of them counts as a constant.
// Captured variables, the content of channels, and the memory beyond the ends of a substring are
// not counted. Memory that several values share counts for each of them, because they may be
// evicted separately. A value of more than limit bytes, or of more than maxSteps parts, is
// TooHeavy, and is not weighed completely.
func Weigh[V any](v *V, limit int64) (weight int64, complete bool) {
	size, t := int64(unsafe.Sizeof(*v)), reflect.TypeFor[V]()
	if flat(t) && size <= limit {
		return size, true
	}
	r, s := reflect.ValueOf(v).Elem(), shapeOf(t)
	w := weigher{steps: simpleSteps, left: limit - size}
	if !w.addReferenced(r, s) && w.steps <= 0 { // it may be cyclic, or share large parts within itself
		w = weigher{steps: maxSteps, left: limit - size, seen: make(map[part]bool)}
		w.addReferenced(r, s)
	}
	if w.steps <= 0 || w.left < 0 {
		return TooHeavy, true
	}
	return limit - w.left, !w.partial
}

type weigher struct {
	steps   int
	left    int64         // bytes until the limit
	seen    map[part]bool // nil: not recorded
	partial bool          // some memory was not read
}

// part identifies a pointer's target.
type part struct {
	address unsafe.Pointer
	n       int
	typ     reflect.Type
}

// seenBefore reports whether a part has been seen before, and records it.
func (w *weigher) seenBefore(v reflect.Value, n int) bool {
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

// addBlock counts n bytes that were allocated together, and reports whether to continue.
func (w *weigher) addBlock(n int64) bool {
	w.left -= block(n)
	return w.left >= 0
}

// addUnread counts the unread memory of n values of shape s, and reports whether to continue.
func (w *weigher) addUnread(n int, s *shape) bool {
	if s.unread > 0 && n > 0 {
		w.partial = true
		w.left -= mul(n, uintptr(s.unread))
	}
	return w.left >= 0
}

// addReferenced counts the memory that v refers to, in addition to its own, and reports whether
// to continue.
func (w *weigher) addReferenced(v reflect.Value, s *shape) bool {
	if s.flat {
		return true
	}
	if w.steps--; w.steps <= 0 || !w.addUnread(1, s) {
		return false
	}
	switch s.kind {
	case reflect.String:
		return w.addBlock(int64(v.Len()))
	case reflect.Pointer:
		return v.IsNil() || w.seenBefore(v, 1) || w.addBlock(s.elem.size) && w.addReferenced(v.Elem(), s.elem)
	case reflect.Interface:
		if v.IsNil() {
			return true
		}
		shape := shapeOf(v.Elem().Type())
		return w.addBlock(shape.size) && w.addReferenced(v.Elem(), shape)
	case reflect.Slice:
		if s.opaque {
			return w.addBlock(mul(v.Cap(), uintptr(s.elem.size)))
		}
		if v.IsNil() || w.seenBefore(v, v.Len()) {
			return true
		}
		return w.addBlock(mul(v.Cap(), uintptr(s.elem.size))) && w.elements(v, s.elem)
	case reflect.Array:
		return w.elements(v, s.elem)
	case reflect.Map:
		return v.IsNil() || w.seenBefore(v, 1) || w.entries(v, s)
	case reflect.Struct:
		for _, f := range s.fields {
			if !w.addReferenced(v.Field(f.index), f.shape) {
				return false
			}
		}
		return true
	case reflect.Chan:
		return v.IsNil() || w.addBlock(chanSize+mul(v.Cap(), uintptr(s.elem.size)))
	default: // a function, an unsafe pointer, or a value that is not read
		return true
	}
}

// chanSize is the size of a channel without its buffer.
const chanSize = 96

// elements counts the memory that the elements of a slice or array refer to. Strings are cheap to
// weigh, so several count as one step.
func (w *weigher) elements(v reflect.Value, elem *shape) bool {
	switch {
	case elem.flat:
		return true
	case elem.kind == reflect.Invalid:
		return w.addUnread(v.Len(), elem)
	case elem.kind == reflect.String:
		const stringsPerStep = 16
		for i := range v.Len() {
			if i%stringsPerStep == 0 {
				w.steps--
			}
			if w.steps <= 0 || !w.addBlock(int64(v.Index(i).Len())) {
				return false
			}
		}
		return true
	}
	for i := range v.Len() {
		if !w.addReferenced(v.Index(i), elem) {
			return false
		}
	}
	return true
}

// The sizes of a Swiss map (package internal/runtime/maps).
const (
	mapSize   = 48  // its header
	groupSize = 8   // minimum number of slots that are allocated together, with a control byte each
	maxInSlot = 128 // larger keys and values are allocated separately, with a pointer in the slot
)

// entries counts a map. A map that has grown may be only 7/16 full. Deleted entries cannot be
// seen.
func (w *weigher) entries(v reflect.Value, s *shape) bool {
	n, slot := int64(v.Len()), int64(1)
	apart := int64(0) // bytes per entry that are allocated separately
	for _, elem := range []*shape{s.key, s.elem} {
		if elem.size > maxInSlot {
			apart += block(elem.size)
			slot += wordSize
		} else {
			slot += (elem.size + wordSize - 1) &^ (wordSize - 1)
		}
	}
	slots := int64(groupSize)
	if n > groupSize {
		slots = n*16/7 + groupSize
	}
	w.left -= mapSize + n*apart
	if !w.addBlock(slots * slot) {
		return false
	}
	keys, elems := s.key.isRead(), s.elem.isRead()
	if !keys && !w.addUnread(v.Len(), s.key) || !elems && !w.addUnread(v.Len(), s.elem) {
		return false
	}
	if !keys && !elems {
		return true
	}
	var key, elem reflect.Value // of the current entry; parts that are not read are not copied either
	if keys {
		key = reflect.New(v.Type().Key()).Elem()
	}
	if elems {
		elem = reflect.New(v.Type().Elem()).Elem()
	}
	for it := v.MapRange(); it.Next(); {
		if keys {
			key.SetIterKey(it)
		}
		if elems {
			elem.SetIterValue(it)
		}
		if w.steps--; w.steps <= 0 || keys && !w.addReferenced(key, s.key) || elems && !w.addReferenced(elem, s.elem) {
			return false
		}
	}
	return true
}

const wordSize = int64(unsafe.Sizeof(uintptr(0)))

// mul returns n*size, or TooHeavy if the product is larger.
func mul(n int, size uintptr) int64 {
	if size > 0 && int64(n) > TooHeavy/int64(size) {
		return TooHeavy
	}
	return int64(n) * int64(size)
}

// block returns the number of bytes that the allocator uses for n.
func block(n int64) int64 {
	sizes := sizeClasses()
	if last := sizes[len(sizes)-1]; n > last {
		return (n + pageSize - 1) / pageSize * pageSize
	}
	i, _ := slices.BinarySearch(sizes, n)
	return sizes[i]
}

const pageSize = 8192

// sizeClasses returns the allocator's block sizes, up to the size above which it allocates whole
// pages. It finds them by appending to slices.
var sizeClasses = sync.OnceValue(func() []int64 {
	const largest = 32 << 10
	sizes := []int64{0}
	for n := 0; n < largest; {
		n = cap(append([]byte(nil), make([]byte, n+1)...))
		sizes = append(sizes, int64(n))
	}
	return sizes
})
