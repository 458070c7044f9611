package memory

import (
	"reflect"
	"sync"
	"time"
	"unique"
	"unsafe"
)

// shape says how values of a type are weighed: what of them may be read, and what counts as a
// constant instead. It is made once for each type.
//
// A value belongs to the program. Some of its memory changes while the program uses the value, and
// to read that is a data race, which for a map ends the process. So only plain data is followed:
// exported fields, elements, and what they point to, which no caller may change. A struct that has
// a lock or the like may change at any time, and nothing of it is read. Of a field that is not
// exported only strings and slices are counted, by their lengths.
type shape struct {
	kind   reflect.Kind // of the values; Invalid: they are not read
	size   int64        // of a value itself
	flat   bool         // a value refers to no other memory
	unread int64        // counts for the memory that a value may refer to and that is not read
	closed bool         // of a slice: its elements are not read
	elem   *shape       // of a pointer, slice, array, map or channel
	key    *shape       // of a map
	fields []followed   // of a struct
}

// followed is a field of a struct that refers to other memory and is read.
type followed struct {
	index int
	*shape
}

// The constants that count for memory that is not read.
const (
	sealedWeight = 1024 // of a struct that has a lock or the like, besides its own size
	hiddenWeight = 64   // of a pointer, map or interface in a field that is not exported
)

// shapes has the shapes of types.
var shapes sync.Map

var text = &shape{kind: reflect.String, size: int64(unsafe.Sizeof(""))}

func shapeOf(t reflect.Type) *shape {
	if t.Kind() == reflect.String {
		return text
	}
	if known, ok := shapes.Load(t); ok {
		return known.(*shape)
	}
	m := shapeMaker{}
	s := m.open(t)
	for t, s := range m {
		shapes.LoadOrStore(t, s)
	}
	return s
}

// shapeMaker has the shapes that were made so far, so that a type that contains itself has an end.
type shapeMaker map[reflect.Type]*shape

// open makes the shape of values that may be followed.
func (m shapeMaker) open(t reflect.Type) *shape {
	if s, ok := m[t]; ok {
		return s
	}
	s := &shape{kind: t.Kind(), size: int64(t.Size()), flat: flat(t)}
	m[t] = s
	if s.flat {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan:
		s.elem = m.open(t.Elem())
	case reflect.Map:
		s.key, s.elem = m.open(t.Key()), m.open(t.Elem())
	case reflect.Struct:
		m.openFields(s, t)
	}
	return s
}

func (m shapeMaker) openFields(s *shape, t reflect.Type) {
	isMessage := isMessage(t)
	if !isMessage && changes(t, make(map[reflect.Type]bool)) {
		s.kind, s.unread = reflect.Invalid, sealedWeight
		return
	}
	for f := range t.Fields() {
		switch {
		case f.IsExported() || f.Anonymous && f.Type.Kind() == reflect.Struct:
			s.add(f, m.open(f.Type))
		case isMessage && f.Name == "state": // all messages of the type share what it points to
		default:
			s.add(f, hidden(f.Type))
		}
	}
}

// hidden makes the shape of values in a field that is not exported: nothing that they refer to is
// read.
func hidden(t reflect.Type) *shape {
	s := &shape{kind: t.Kind(), size: int64(t.Size()), flat: flat(t)}
	if s.flat {
		return s
	}
	switch t.Kind() {
	case reflect.String:
	case reflect.Slice:
		s.elem, s.closed = &shape{size: int64(t.Elem().Size())}, true
		if !flat(t.Elem()) {
			s.unread = hiddenWeight
		}
	case reflect.Array:
		s.elem = hidden(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			s.add(f, hidden(f.Type))
		}
	default:
		s.kind, s.unread = reflect.Invalid, hiddenWeight
	}
	return s
}

// add adds a field to the shape of a struct.
func (s *shape) add(f reflect.StructField, of *shape) {
	switch {
	case of.flat:
	case of.kind == reflect.Invalid:
		s.unread += of.unread
	default:
		s.fields = append(s.fields, followed{f.Index[0], of})
	}
}

// isRead reports whether a value has to be read to be weighed.
func (s *shape) isRead() bool { return !s.flat && s.kind != reflect.Invalid }

var locker = reflect.TypeFor[sync.Locker]()

// changes reports whether a value of t, or what it points to, has what programs share: a lock, an
// atomic, a channel, a function, or an unsafe.Pointer. Such a value may change while it is cached,
// and only its own methods know when it may be read.
func changes(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return true
	case reflect.Pointer:
		return t.Implements(locker) || changes(t.Elem(), seen)
	case reflect.Interface:
		return t.Implements(locker)
	case reflect.Array:
		return t.Len() > 0 && changes(t.Elem(), seen)
	case reflect.Struct:
	default:
		return false
	}
	switch pkg := t.PkgPath(); {
	case isMessage(t), t == moment, pkg == handlePackage:
		return false
	case pkg == "sync", pkg == "sync/atomic", reflect.PointerTo(t).Implements(locker):
		return true
	}
	for f := range t.Fields() {
		if changes(f.Type, seen) {
			return true
		}
	}
	return false
}

var message = reflect.TypeFor[interface{ ProtoMessage() }]()

// isMessage reports whether t is a message of Protocol Buffers, as its compiler generates them. The
// exported fields of a message are plain data. The others lead to the descriptors of all types, and
// to locks. A struct that has the method by embedding a message is not one itself.
func isMessage(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || !reflect.PointerTo(t).Implements(message) {
		return false
	}
	for f := range t.Fields() {
		if f.Anonymous && (f.Type.Implements(message) || reflect.PointerTo(f.Type).Implements(message)) {
			return false
		}
	}
	return true
}

// Every time.Time points to a location, and every unique.Handle to a value, that the whole process
// shares.
var (
	moment        = reflect.TypeFor[time.Time]()
	location      = reflect.TypeFor[*time.Location]()
	handlePackage = reflect.TypeFor[unique.Handle[int]]().PkgPath()
)

// Flat reports whether values of T refer to no other memory.
func Flat[T any]() bool { return flat(reflect.TypeFor[T]()) }

// flats has for types whether they are flat.
var flats sync.Map

// flat reports whether values of t refer to no memory that is theirs.
func flat(t reflect.Type) bool {
	switch k := t.Kind(); {
	case t == moment, t == location:
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
	} else if t.PkgPath() != handlePackage {
		for f := range t.Fields() {
			is = is && flat(f.Type)
		}
	}
	flats.Store(t, is)
	return is
}
