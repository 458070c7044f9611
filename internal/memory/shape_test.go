package memory

import (
	"bytes"
	"context"
	"database/sql"
	"math/big"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unique"
	"unsafe"
)

// forbidden returns memory that may not be read: to read it is a fault.
func forbidden(t *testing.T) unsafe.Pointer {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, 1<<16, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(b) })
	return unsafe.Pointer(&b[0])
}

// load returns a V that consists of the pointer p, and for a slice of lengths, too.
func load[V any](p unsafe.Pointer) (v V) {
	*(*unsafe.Pointer)(unsafe.Pointer(&v)) = p
	if h := reflect.ValueOf(v); h.Kind() == reflect.Slice {
		(*[3]int)(unsafe.Pointer(&v))[1], (*[3]int)(unsafe.Pointer(&v))[2] = 10, 10
	}
	return v
}

// The types that may change while they are cached.
//
//nolint:unused // unexported fields are found by reflection
type (
	locked struct {
		mu   sync.Mutex
		Seen map[string]string
	}
	lockedAt struct {
		mu   *sync.RWMutex
		Seen map[string]string
	}
	byInterface struct {
		L    sync.Locker
		Seen map[string]string
	}
	embedding struct {
		sync.Mutex
		Seen map[string]string
	}
	embeddingAt struct {
		*locked
		Tags []string
	}
	deep struct {
		in   [2]struct{ in struct{ once sync.Once } }
		Tags []string
	}
	counting struct {
		n    atomic.Int64
		Tags []string
	}
	swapped struct {
		next atomic.Pointer[locked]
		Tags []string
	}
	channelled struct {
		done chan struct{}
		Tags []string
	}
	calling struct {
		f    func()
		Tags []string
	}
	raw struct {
		p    unsafe.Pointer
		Tags []string
	}
	pooled struct {
		no   noCopy
		Tags []string
	}
	child struct {
		Parent *locked
		Tags   []string
	}
	cyclic struct {
		Next *cyclic
		mu   *sync.Mutex
		Tags []string
	}
	generic[T any] struct {
		V    T
		mu   sync.Mutex
		Tags []string
	}
	withMessage struct {
		book
		mu   sync.Mutex
		Tags []string
	}
	noCopy struct{}

	// What is not exported.
	hiding struct {
		M map[string]string
		m map[string]string
		p *row
		i any
		s []string
		n struct{ Tags *[]string }
		a [2]*row
	}
)

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// book looks like a message of Protocol Buffers.
//
//nolint:unused // unexported fields are found by reflection
type book struct {
	state struct{ info *struct{ mu sync.Mutex } }
	size  int32
	Title string
	Pages []*page
	more  []byte
}

type page struct {
	state struct{ info *struct{ mu sync.Mutex } }
	Text  string
}

func (*book) ProtoMessage() {}
func (*page) ProtoMessage() {}

// weighed is Weigh for a value that has no address.
func weighed[V any](v V, limit int64) (int64, bool) { return Weigh(&v, limit) }

// Nothing of a value is read that may change while it is cached.
func TestWeighReadsNothingThatMayChange(t *testing.T) {
	p := forbidden(t)
	type M = map[string]string
	for name, weigh := range map[string]func() (int64, bool){
		"locked":               func() (int64, bool) { return weighed(load[*locked](p), TooHeavy) },
		"a lock pointed to":    func() (int64, bool) { return weighed(load[*lockedAt](p), TooHeavy) },
		"a Locker":             func() (int64, bool) { return weighed(load[*byInterface](p), TooHeavy) },
		"an embedded lock":     func() (int64, bool) { return weighed(load[*embedding](p), TooHeavy) },
		"an embedded pointer":  func() (int64, bool) { return weighed(load[*embeddingAt](p), TooHeavy) },
		"a deep lock":          func() (int64, bool) { return weighed(load[*deep](p), TooHeavy) },
		"an atomic":            func() (int64, bool) { return weighed(load[*counting](p), TooHeavy) },
		"an atomic pointer":    func() (int64, bool) { return weighed(load[*swapped](p), TooHeavy) },
		"a channel":            func() (int64, bool) { return weighed(load[*channelled](p), TooHeavy) },
		"a function":           func() (int64, bool) { return weighed(load[*calling](p), TooHeavy) },
		"an unsafe pointer":    func() (int64, bool) { return weighed(load[*raw](p), TooHeavy) },
		"not to be copied":     func() (int64, bool) { return weighed(load[*pooled](p), TooHeavy) },
		"a parent's lock":      func() (int64, bool) { return weighed(load[*child](p), TooHeavy) },
		"a cyclic type":        func() (int64, bool) { return weighed(load[*cyclic](p), TooHeavy) },
		"a generic type":       func() (int64, bool) { return weighed(load[*generic[int]](p), TooHeavy) },
		"a message and a lock": func() (int64, bool) { return weighed(load[*withMessage](p), TooHeavy) },
		"in an any":            func() (int64, bool) { return weighed[any](load[*locked](p), TooHeavy) },
		"in a slice":           func() (int64, bool) { return weighed([]*locked{load[*locked](p)}, TooHeavy) },
		"slice of values":      func() (int64, bool) { return weighed(load[[]locked](p), TooHeavy) },
		"array at":             func() (int64, bool) { return weighed(load[*[3]locked](p), TooHeavy) },
		"in a map":             func() (int64, bool) { return weighed(map[int]*locked{1: load[*locked](p)}, TooHeavy) },
		"key of a map":         func() (int64, bool) { return weighed(map[*locked]string{load[*locked](p): "x"}, TooHeavy) },
		"in a map of any":      func() (int64, bool) { return weighed(map[string]any{"a": load[*locked](p)}, TooHeavy) },
		"in a map of values":   func() (int64, bool) { return weighed(map[int]locked{1: {Seen: load[M](p)}}, TooHeavy) },
		"pointers":             func() (int64, bool) { l := load[*locked](p); return weighed(&l, TooHeavy) },
		"hidden map":           func() (int64, bool) { return weighed(hiding{m: load[M](p)}, TooHeavy) },
		"hidden pointer":       func() (int64, bool) { return weighed(&hiding{p: load[*row](p)}, TooHeavy) },
		"hidden interface":     func() (int64, bool) { return weighed(hiding{i: load[*row](p)}, TooHeavy) },
		"hidden slice":         func() (int64, bool) { return weighed(hiding{s: load[[]string](p)}, TooHeavy) },
		"exported within hidden": func() (int64, bool) {
			return weighed(hiding{n: struct{ Tags *[]string }{load[*[]string](p)}}, TooHeavy)
		},
		"hidden array": func() (int64, bool) { return weighed(hiding{a: [2]*row{load[*row](p)}}, TooHeavy) },
		"descriptors": func() (int64, bool) {
			b := &book{Pages: []*page{{}}}
			b.state.info, b.Pages[0].state.info = load[*struct{ mu sync.Mutex }](p), load[*struct{ mu sync.Mutex }](p)
			weight, _ := weighed(b, TooHeavy)
			return weight, false // it is whole
		},
		"sql.DB":        func() (int64, bool) { return weighed(load[*sql.DB](p), TooHeavy) },
		"sql.Tx":        func() (int64, bool) { return weighed(load[*sql.Tx](p), TooHeavy) },
		"http.Client":   func() (int64, bool) { return weighed(load[*http.Client](p), TooHeavy) },
		"http.Request":  func() (int64, bool) { return weighed(load[*http.Request](p), TooHeavy) },
		"sync.Map":      func() (int64, bool) { return weighed(load[*sync.Map](p), TooHeavy) },
		"sync.Pool":     func() (int64, bool) { return weighed(load[*sync.Pool](p), TooHeavy) },
		"time.Timer":    func() (int64, bool) { return weighed(load[*time.Timer](p), TooHeavy) },
		"reflect.Value": func() (int64, bool) { return weighed(reflect.ValueOf(load[*locked](p)), TooHeavy) },
		"reflect.Type":  func() (int64, bool) { return weighed(reflect.TypeFor[row](), TooHeavy) },
		"context": func() (int64, bool) {
			ctx, cancel := context.WithCancel(context.WithValue(context.Background(), noCopy{}, load[*row](p)))
			defer cancel()
			return weighed(ctx, TooHeavy)
		},
	} {
		t.Run(name, func(t *testing.T) {
			debug.SetPanicOnFault(true)
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("it was read: %v", r)
				}
			}()
			if weight, whole := weigh(); weight <= 0 || weight > 16<<10 || whole {
				t.Errorf("%d, %v", weight, whole)
			}
		})
	}
}

// A value is weighed while its own methods change it.
func TestWeighOfAValueInUse(t *testing.T) {
	v := &locked{Seen: map[string]string{}}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			v.mu.Lock()
			v.Seen[strings.Repeat("x", i%100)] = "y"
			v.mu.Unlock()
		}
	})
	for range 1000 {
		weighed(v, TooHeavy)
		weighed[any](map[string]any{"v": v}, TooHeavy)
	}
	close(stop)
	wg.Wait()
}

// What is plain counts, also where something else is not read.
func TestWeighOfPartsOfValues(t *testing.T) {
	var (
		word  = block(wordSize)
		text  = block(2 * wordSize)
		slice = block(3 * wordSize)
	)
	kib := strings.Repeat("x", 1<<10)
	n := new(big.Int).Lsh(big.NewInt(1), 8*1000-1)
	//nolint:unused // unexported fields are found by reflection
	type hidden struct {
		id   int64
		name string
		data []byte
		tags []string
	}
	for name, c := range map[string]struct {
		value any
		want  int64
		whole bool
	}{
		"hidden text":    {struct{ s string }{kib}, text + 1<<10, true},
		"hidden bytes":   {struct{ b []byte }{make([]byte, 1<<10)}, slice + 1<<10, true},
		"hidden texts":   {struct{ s []string }{make([]string, 64)}, slice + 64*2*wordSize + hiddenWeight, false},
		"hidden struct":  {struct{ in struct{ s string } }{struct{ s string }{kib}}, text + 1<<10, true},
		"hidden pointer": {struct{ p *row }{}, word + hiddenWeight, false},
		"rows":           {[]hidden{{name: kib, data: make([]byte, 1<<10)}}, slice + block(int64(unsafe.Sizeof(hidden{}))) + 2<<10 + hiddenWeight, false},
		"sealed":         {&locked{}, word + block(int64(unsafe.Sizeof(locked{}))) + sealedWeight, false},
		"sealed ones":    {[]locked{{}, {}}, slice + block(2*int64(unsafe.Sizeof(locked{}))) + 2*sealedWeight, false},
		"a flat lock": {&struct {
			mu sync.Mutex
			N  int
		}{}, word + block(int64(unsafe.Sizeof(struct {
			mu sync.Mutex
			N  int
		}{}))), true},
		"big.Int":      {n, word + block(int64(unsafe.Sizeof(*n))) + block(int64(cap(n.Bits()))*wordSize), true},
		"big.Rat":      {new(big.Rat).SetFrac(n, big.NewInt(3)), -1, true},
		"netip.Addr":   {netip.MustParseAddr("fe80::1%eth0"), block(int64(unsafe.Sizeof(netip.Addr{}))), true},
		"unique":       {unique.Make(kib), word, true},
		"url":          {&url.URL{Path: kib, User: url.User("u")}, -1, true},
		"sql.Null":     {sql.Null[string]{V: kib}, block(int64(unsafe.Sizeof(sql.Null[string]{}))) + 1<<10, true},
		"bytes.Buffer": {bytes.NewBufferString(kib), -1, true},
		"message":      {&book{Title: kib, Pages: []*page{{Text: kib}}, more: make([]byte, 1<<10)}, word + block(int64(unsafe.Sizeof(book{}))) + word + block(int64(unsafe.Sizeof(page{}))) + 3<<10, true},
	} {
		got, whole := weighed(c.value, TooHeavy)
		got -= int64(unsafe.Sizeof(c.value))
		if c.want >= 0 && got != c.want || c.want < 0 && (got < 1<<9 || got > 4<<10) || whole != c.whole {
			t.Errorf("%s: %d, %v, want %d, %v", name, got, whole, c.want, c.whole)
		}
	}
}
