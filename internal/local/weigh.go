package local

import (
	"reflect"
	"time"
)

// maxSteps bounds what weighing a value may cost; what is left beyond it counts as much as what was seen.
const maxSteps = 4096

// location is what every time.Time points to, shared by the whole process.
var location = reflect.TypeFor[*time.Location]()

// Weigh estimates how many bytes of memory v holds, with what it points to. Values that share memory count it each, for they
// may be evicted apart; a pointer cycle ends at maxSteps.
func Weigh(v any) int64 {
	if v == nil {
		return 0
	}
	w := weigher{steps: maxSteps}
	r := reflect.ValueOf(v)
	return int64(r.Type().Size()) + w.beyond(r)
}

type weigher struct{ steps int }

// beyond is the memory that v refers to, beside its own.
func (w *weigher) beyond(v reflect.Value) int64 {
	if w.steps--; w.steps <= 0 {
		return 0
	}
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() || v.Type() == location {
			return 0
		}
		return int64(v.Elem().Type().Size()) + w.beyond(v.Elem())
	case reflect.Slice:
		if v.IsNil() {
			return 0
		}
		return int64(v.Cap())*int64(v.Type().Elem().Size()) + w.elements(v)
	case reflect.Array:
		return w.elements(v)
	case reflect.Map:
		return w.entries(v)
	case reflect.Struct:
		var sum int64
		for _, f := range v.Fields() {
			sum += w.beyond(f)
		}
		return sum
	default:
		return 0
	}
}

func (w *weigher) elements(v reflect.Value) int64 {
	if flat(v.Type().Elem()) {
		return 0
	}
	var sum int64
	for i := range v.Len() {
		if w.steps <= 0 {
			return sum / int64(max(i, 1)) * int64(v.Len())
		}
		sum += w.beyond(v.Index(i))
	}
	return sum
}

func (w *weigher) entries(v reflect.Value) int64 {
	const slot = 2 // a Swiss map is between half and seven eighths full, and has a control byte a slot
	n := int64(v.Len())
	sum := n * (int64(v.Type().Key().Size()+v.Type().Elem().Size())*slot + 1)
	if flat(v.Type().Key()) && flat(v.Type().Elem()) {
		return sum
	}
	var deep, seen int64
	for it := v.MapRange(); it.Next(); seen++ {
		if w.steps <= 0 {
			return sum + deep/max(seen, 1)*n
		}
		deep += w.beyond(it.Key()) + w.beyond(it.Value())
	}
	return sum + deep
}

// flat tells whether values of t refer to no other memory.
func flat(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return false
	case reflect.Array:
		return flat(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			if !flat(f.Type) {
				return false
			}
		}
	}
	return true
}
