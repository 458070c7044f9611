package memory

import (
	"reflect"
	"sync"
	"time"
	"unique"
	"unsafe"
)

// shape describes how values of a type are weighed: which parts are read, and which parts count
// as a constant. It is computed once per type.
//
// A value belongs to the program, which may change parts of its memory at any time. Reading those
// parts is a data race, which for a map crashes the process. So only plain data is followed:
// exported fields, elements, and what they point to, which callers must not change. A struct that
// contains a lock or the like may change at any time, so nothing of it is read. Of an unexported
// field, only strings and slices are counted, by their lengths.
type shape struct {
	kind   reflect.Kind // of the values; Invalid: they are not read
	size   int64        // of the value itself, in bytes
	flat   bool         // the value refers to no other memory
	unread int64        // constant for the memory that the value may refer to and that is not read
	opaque bool         // of a slice: its elements are not read
	elem   *shape       // of a pointer, slice, array, map or channel
	key    *shape       // of a map
	fields []followed   // of a struct
}

// followed is a field of a struct that refers to other memory and is read.
type followed struct {
	index int
	*shape
}

// The constants for memory that is not read, in bytes.
const (
	sealedWeight = 1024 // of a struct with a lock or the like, in addition to its own size
	hiddenWeight = 64   // of a pointer, map or interface in an unexported field
)

// shapes caches the shapes of types.
var shapes sync.Map

var stringShape = &shape{kind: reflect.String, size: int64(unsafe.Sizeof(""))}

func shapeOf(t reflect.Type) *shape {
	if t.Kind() == reflect.String {
		return stringShape
	}
	if known, ok := shapes.Load(t); ok {
		return known.(*shape)
	}
	m := maker{}
	s := m.open(t)
	for t, s := range m {
		shapes.LoadOrStore(t, s)
	}
	return s
}

// maker collects the shapes that it has made, so that recursive types terminate.
type maker map[reflect.Type]*shape

// open returns the shape of values that may be followed.
func (m maker) open(t reflect.Type) *shape {
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

func (m maker) openFields(s *shape, t reflect.Type) {
	isMessage := isMessage(t)
	if !isMessage && mutable(t, make(map[reflect.Type]bool)) {
		s.kind, s.unread = reflect.Invalid, sealedWeight
		return
	}
	for f := range t.Fields() {
		switch {
		case f.IsExported() || f.Anonymous && f.Type.Kind() == reflect.Struct:
			s.add(f, m.open(f.Type))
		case isMessage && f.Name == "state": // points to data that all messages of the type share
		default:
			s.add(f, hidden(f.Type))
		}
	}
}

// hidden returns the shape of values in an unexported field. Nothing that they refer to is read.
func hidden(t reflect.Type) *shape {
	s := &shape{kind: t.Kind(), size: int64(t.Size()), flat: flat(t)}
	if s.flat {
		return s
	}
	switch t.Kind() {
	case reflect.String:
	case reflect.Slice:
		s.elem, s.opaque = &shape{size: int64(t.Elem().Size())}, true
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
func (s *shape) add(f reflect.StructField, fieldShape *shape) {
	switch {
	case fieldShape.flat:
	case fieldShape.kind == reflect.Invalid:
		s.unread += fieldShape.unread
	default:
		s.fields = append(s.fields, followed{f.Index[0], fieldShape})
	}
}

// isRead reports whether a value must be read to be weighed.
func (s *shape) isRead() bool { return !s.flat && s.kind != reflect.Invalid }

var lockerType = reflect.TypeFor[sync.Locker]()

// mutable reports whether a value of t, or a value that it points to, contains something that
// programs share: a lock, an atomic, a channel, a function, or an unsafe.Pointer. Such a value
// may change while it is cached, and only its own methods know when it may be read.
func mutable(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return true
	case reflect.Pointer:
		return t.Implements(lockerType) || mutable(t.Elem(), seen)
	case reflect.Interface:
		return t.Implements(lockerType)
	case reflect.Array:
		return t.Len() > 0 && mutable(t.Elem(), seen)
	case reflect.Struct:
	default:
		return false
	}
	switch pkg := t.PkgPath(); {
	case isMessage(t), t == timeType, pkg == handlePackage:
		return false
	case pkg == "sync", pkg == "sync/atomic", reflect.PointerTo(t).Implements(lockerType):
		return true
	}
	for f := range t.Fields() {
		if mutable(f.Type, seen) {
			return true
		}
	}
	return false
}

var messageType = reflect.TypeFor[interface{ ProtoMessage() }]()

// isMessage reports whether t is a Protocol Buffers message, as generated by its compiler. The
// exported fields of a message are plain data. The others lead to the descriptors of all types,
// and to locks. A struct that gets the method by embedding a message is not itself one.
func isMessage(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || !reflect.PointerTo(t).Implements(messageType) {
		return false
	}
	for f := range t.Fields() {
		if f.Anonymous && (f.Type.Implements(messageType) || reflect.PointerTo(f.Type).Implements(messageType)) {
			return false
		}
	}
	return true
}

// Every time.Time points to a location, and every unique.Handle to a value, that the whole
// process shares.
var (
	timeType      = reflect.TypeFor[time.Time]()
	locationType  = reflect.TypeFor[*time.Location]()
	handlePackage = reflect.TypeFor[unique.Handle[int]]().PkgPath()
)

// Flat reports whether values of T refer to no other memory.
func Flat[T any]() bool { return flat(reflect.TypeFor[T]()) }

// flats caches for each type whether it is flat.
var flats sync.Map

// flat reports whether values of t refer to no memory of their own.
func flat(t reflect.Type) bool {
	switch k := t.Kind(); {
	case t == timeType, t == locationType:
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
