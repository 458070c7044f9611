package memory

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

type node struct {
	Name string
	Next *node
}

type pair struct{ A, B any }

// weigh returns the weight of a value of any weight, without the interface that it comes in.
func weigh(v any) int64 {
	const iface = int64(unsafe.Sizeof(v))
	return weighTo(v, TooHeavy) - iface
}

func weighTo[V any](v V, most int64) int64 {
	weight, _ := Weigh(&v, most)
	return weight
}

type row struct {
	ID     int64
	Name   string
	Tags   []string
	Counts map[string]int
	Parent *row
	At     time.Time
}

func TestWeigh(t *testing.T) {
	var ( // in blocks of the allocator, which for 32 bits are larger
		word   = block(wordSize)
		text   = block(2 * wordSize) // a string's header
		slice  = block(3 * wordSize)
		iface  = block(2 * wordSize)
		moment = block(int64(unsafe.Sizeof(time.Time{})))
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
		"int8":               {int8(1), word},
		"bool":               {true, word},
		"empty struct":       {struct{}{}, 0},
		"string":             {"hello", text + 8},
		"empty string":       {"", text},
		"bytes":              {make([]byte, 10, 100), slice + 112},
		"nil slice":          {[]int(nil), slice},
		"ints":               {[]int32{1, 2, 3}, slice + 16},
		"strings":            {[]string{"a", "bcd"}, slice + 2*text + 16},
		"slices":             {[][]byte{make([]byte, 3), nil}, slice + block(6*wordSize) + 8},
		"array":              {[3]int64{}, 24},
		"array of strings":   {[2]string{"a", "bc"}, 2*text + 16},
		"pointer":            {pointer, 2 * word},
		"nil pointer":        {(*int)(nil), word},
		"pointers":           {&pointer, 3 * word},
		"interfaces":         {pair{"abc", nil}, 2*iface + text + 8},
		"interface, pointer": {pair{pointer, 7}, 2*iface + word + word + word},
		"list":               {&node{"ab", &node{"c", nil}}, word + 2*(text+word) + 16},
		"time":               {now, moment}, // its Location is the process's
		"times":              {[]time.Time{now, now}, slice + 2*moment},
		"pointer to a time":  {&now, word + moment},
		"location":           {time.UTC, word},
		"func":               {func() {}, word},
		"channel":            {make(chan int, 100), word + block(96+100*wordSize)},
		"nil map":            {map[string]int(nil), word},
	} {
		if got := weigh(c.value); got != c.want {
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
		if got := weigh(c.value); got < n*c.entry || got > n*c.entry*13/5 {
			t.Errorf("%s: %d an entry, want at least %d", name, got/n, c.entry)
		}
	}
}

func TestWeighOfACycleEnds(t *testing.T) {
	ring := &node{Name: "a"}
	ring.Next = &node{Name: "b", Next: ring}
	if got := weigh(ring); got <= 0 || got > maxSteps*100 {
		t.Errorf("a ring weighs %d", got)
	}
	type tree struct{ Children []*tree }
	root := &tree{}
	root.Children = []*tree{root, root, root}
	if got := weigh(root); got <= 0 {
		t.Errorf("a tree that contains itself weighs %d", got)
	}
	var self any
	self = &self
	if got := weigh(self); got <= 0 {
		t.Errorf("an interface that holds itself weighs %d", got)
	}
	loop := map[string]any{}
	loop["self"] = loop
	if got := weigh(loop); got <= 0 {
		t.Errorf("a map that contains itself weighs %d", got)
	}
}

// A large value is weighed to its end, and one of too many parts is not weighed: either takes
// little time.
func TestWeighOfAHugeValue(t *testing.T) {
	const n = maxSteps / 16
	text := strings.Repeat("x", 100)
	texts := make([]string, n*10)
	structs := make([]row, n)
	nested := make([][]string, n/100)
	entries := make(map[int]string, n)
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
		"strings":           {texts, n * 10 * (2*wordSize + 112)},
		"structs":           {structs, n * (int64(unsafe.Sizeof(row{})) + 112)},
		"slices of strings": {nested, n/100*3*wordSize + n*(2*wordSize+112)},
		"map":               {entries, n * (3*wordSize + 1 + 112)},
		"more strings":      {make([]string, 20*maxSteps), TooHeavy},
		"more structs":      {make([]row, maxSteps), TooHeavy},
		"a longer list":     {list(maxSteps), TooHeavy},
	} {
		begin := time.Now()
		got := weigh(c.value)
		if took := time.Since(begin); testenv.Accepting && took > 100*time.Millisecond {
			t.Errorf("%s: it took %v", name, took)
		}
		if c.want == TooHeavy && got < c.want/2 || c.want < TooHeavy && (got < c.want || got > c.want*13/10) {
			t.Errorf("%s: %d, want about %d", name, got, c.want)
		}
	}
}

func list(n int) (first *node) {
	for range n {
		first = &node{Next: first}
	}
	return first
}

// A value that is too heavy is not weighed to its end.
func TestWeighEndsAtTheMost(t *testing.T) {
	texts := []string{strings.Repeat("x", 100), strings.Repeat("x", 1000)}
	if got := weighTo(texts, 1300); got < 1156 || got > 1300 {
		t.Errorf("%d", got)
	}
	if got := weighTo(texts, 1000); got != TooHeavy {
		t.Errorf("%d of at most 1000", got)
	}
}

// Memory that a value refers to more than once counts once, if the value is large enough for a
// precise count.
func TestWeighOfWhatIsSharedWithin(t *testing.T) {
	shared := list(100)
	many := make([]*node, 10_000)
	for i := range many {
		many[i] = shared
	}
	if got, most := weighTo(many, TooHeavy), int64(10_000*8+24+100*40); got > most*11/10 {
		t.Errorf("%d, want %d", got, most)
	}
}

// Each value that is put into memory is weighed, so weighing must not copy it to the heap. A map
// needs a copy of one key and one value.
func TestWeighAllocatesLittle(t *testing.T) {
	r := row{Name: "a", Tags: []string{"b", "c"}, Parent: &row{Name: "d"}}
	number, text, counts := 1, "text", map[string]string{"a": "b", "c": "d", "e": "f"}
	for name, c := range map[string]struct {
		weigh func()
		most  float64
	}{
		"int":    {func() { Weigh(&number, TooHeavy) }, 0},
		"string": {func() { Weigh(&text, TooHeavy) }, 0},
		"struct": {func() { Weigh(&r, TooHeavy) }, 0},
		"map":    {func() { Weigh(&counts, TooHeavy) }, 3}, // and the iterator
	} {
		if n := testing.AllocsPerRun(100, c.weigh); n > c.most {
			t.Errorf("%s: %v allocations, want at most %v", name, n, c.most)
		}
	}
}
