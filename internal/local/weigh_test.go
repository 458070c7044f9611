package local

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

type node struct {
	Name string
	Next *node
}

type pair struct{ a, b any }

type row struct {
	ID     int64
	Name   string
	Tags   []string
	Counts map[string]int
	Parent *row
	At     time.Time
}

func TestWeigh(t *testing.T) {
	const (
		word   = int64(unsafe.Sizeof(uintptr(0)))
		text   = 2 * word // a string's header
		slice  = 3 * word
		iface  = 2 * word
		moment = int64(unsafe.Sizeof(time.Time{}))
	)
	one := 1
	pointer := &one
	now := time.Now().In(time.FixedZone("somewhere", 3600))
	for name, c := range map[string]struct {
		value any
		want  int64
	}{
		"nothing":            {nil, 0},
		"int":                {1, word},
		"int8":               {int8(1), 1},
		"bool":               {true, 1},
		"empty struct":       {struct{}{}, 0},
		"string":             {"hello", text + 5},
		"empty string":       {"", text},
		"bytes":              {make([]byte, 10, 100), slice + 100},
		"nil slice":          {[]int(nil), slice},
		"ints":               {[]int32{1, 2, 3}, slice + 12},
		"strings":            {[]string{"a", "bcd"}, slice + 2*text + 4},
		"slices":             {[][]byte{make([]byte, 3), nil}, slice + 2*slice + 3},
		"array":              {[3]int64{}, 24},
		"array of strings":   {[2]string{"a", "bc"}, 2*text + 3},
		"pointer":            {pointer, 2 * word},
		"nil pointer":        {(*int)(nil), word},
		"pointers":           {&pointer, 3 * word},
		"interfaces":         {pair{"abc", nil}, 2*iface + text + 3},
		"interface, pointer": {pair{pointer, 7}, 2*iface + word + word + word},
		"list":               {&node{"ab", &node{"c", nil}}, word + 2*(text+word) + 3},
		"time":               {now, moment}, // its Location is the process's
		"times":              {[]time.Time{now, now}, slice + 2*moment},
		"pointer to a time":  {&now, word + moment},
		"location":           {time.UTC, word},
		"func":               {func() {}, word},
		"channel":            {make(chan int, 100), word},
		"nil map":            {map[string]int(nil), word},
	} {
		if got := Weigh(c.value); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A map's own size is an estimate.
func TestWeighOfAMapIsAboutItsMemory(t *testing.T) {
	const n = 1000
	ints := map[int64]int64{}
	texts := map[string]string{}
	structs := map[int]*node{}
	for i := range n {
		ints[int64(i)] = 1
		texts[fmt.Sprintf("%08d", i)] = strings.Repeat("x", 50)
		structs[i] = &node{Name: "0123456789"}
	}
	for name, c := range map[string]struct {
		value any
		entry int64 // what an entry takes, without the map's spare room
	}{
		"ints":    {ints, 16},
		"strings": {texts, 32 + 58},
		"structs": {structs, 16 + 24 + 10},
	} {
		if got := Weigh(c.value); got < n*c.entry || got > n*c.entry*5/2 {
			t.Errorf("%s: %d an entry, want at least %d", name, got/n, c.entry)
		}
	}
}

func TestWeighOfACycleEnds(t *testing.T) {
	ring := &node{Name: "a"}
	ring.Next = &node{Name: "b", Next: ring}
	if got := Weigh(ring); got <= 0 || got > maxSteps*100 {
		t.Errorf("a ring weighs %d", got)
	}
	type tree struct{ children []*tree }
	root := &tree{}
	root.children = []*tree{root, root, root}
	if got := Weigh(root); got <= 0 {
		t.Errorf("a tree that contains itself weighs %d", got)
	}
	var self any
	self = &self
	if got := Weigh(self); got <= 0 {
		t.Errorf("an interface that holds itself weighs %d", got)
	}
	loop := map[string]any{}
	loop["self"] = loop
	if got := Weigh(loop); got <= 0 {
		t.Errorf("a map that contains itself weighs %d", got)
	}
}

// What is too large to be looked at whole counts as what was seen of it, and takes no time.
func TestWeighOfAHugeValueIsExtrapolated(t *testing.T) {
	const n = 2_000_000
	text := strings.Repeat("x", 100)
	texts := make([]string, n)
	structs := make([]row, n/20)
	nested := make([][]string, n/100)
	entries := make(map[int]string, n/20)
	for i := range texts {
		texts[i] = text
	}
	for i := range structs {
		structs[i].Name = text
		entries[i] = text
	}
	for i := range nested {
		nested[i] = texts[i*100 : i*100+100 : i*100+100]
	}
	for name, c := range map[string]struct {
		value any
		want  int64
	}{
		"strings":           {texts, n * (16 + 100)},
		"structs":           {structs, n / 20 * (int64(unsafe.Sizeof(row{})) + 100)},
		"slices of strings": {nested, n/100*24 + n*(16+100)},
		"map":               {entries, n / 20 * (2*24 + 1 + 100)},
	} {
		begin := time.Now()
		got := Weigh(c.value)
		if took := time.Since(begin); testenv.Accepting && took > 100*time.Millisecond {
			t.Errorf("%s: it took %v", name, took)
		}
		if got < c.want*8/10 || got > c.want*12/10 {
			t.Errorf("%s: %d, want about %d", name, got, c.want)
		}
	}
}

func TestWeighReadsUnexportedFields(t *testing.T) {
	type inner struct{ data []byte }
	type outer struct{ in *inner }
	if got, want := Weigh(outer{&inner{make([]byte, 1000)}}), int64(8+24+1000); got != want {
		t.Errorf("%d, want %d", got, want)
	}
}
