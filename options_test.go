package cacheaside

import (
	"math"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestDocumentedDefaults compares the defaults that docs/options.md states with those that New and
// NewLoader set.
func TestDocumentedDefaults(t *testing.T) {
	page, err := os.ReadFile("docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	stated := map[string]string{} // by "Options.Field"
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, " | "); len(cells) > 2 {
			stated[strings.Trim(cells[0], "| `")] = cells[1]
		}
	}
	derived := map[string]string{ // the beginning of the cell; the value follows from other options
		"Options.MaxQueue":        "10 x `MaxLoads`",
		"Options.ReadTimeout":     "half of `RedisTimeout`",
		"Options.Logger":          "`slog.Default()`",
		"LoaderOptions.MemoryTTL": "as long as its entry",
	}
	n := 0
	for name, defaults := range map[string]any{
		"Options.": (*Options)(nil).withDefaults(), "LoaderOptions.": (*LoaderOptions)(nil).withDefaults(),
	} {
		v := reflect.ValueOf(defaults)
		for i := range v.NumField() {
			field, value := name+v.Type().Field(i).Name, v.Field(i)
			switch text, isDerived := derived[field]; {
			case value.IsZero():
			case isDerived && strings.HasPrefix(stated[field], text):
				n++
			case isDerived || !documented(t, stated[field], value.Type()).Equal(value):
				t.Errorf("%s: docs/options.md states %q, the default is %v", field, stated[field], value)
			default:
				n++
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d defaults were compared", n)
	}
}

// documented returns the value at the beginning of a cell of docs/options.md, as a value of type
// want.
func documented(t *testing.T, cell string, want reflect.Type) reflect.Value {
	if text, ok := strings.CutPrefix(cell, "`\""); ok {
		text, _, _ = strings.Cut(text, "\"")
		return reflect.ValueOf(text)
	}
	parts := regexp.MustCompile(`^([\d.,]*\d)(?: (ms|s|minute|hour|MiB))?`).FindStringSubmatch(cell)
	if parts == nil {
		return reflect.ValueOf(cell)
	}
	number, err := strconv.ParseFloat(strings.ReplaceAll(parts[1], ",", ""), 64)
	if err != nil {
		t.Fatal(err)
	}
	units := map[string]float64{
		"": 1, "MiB": 1 << 20, "ms": float64(time.Millisecond), "s": float64(time.Second),
		"minute": float64(time.Minute), "hour": float64(time.Hour),
	}
	if number *= units[parts[2]]; !reflect.TypeFor[float64]().ConvertibleTo(want) {
		return reflect.ValueOf(cell)
	}
	return reflect.ValueOf(number).Convert(want)
}

// By default the queue is ten times as long as MaxLoads, for any value of it.
func TestMaxQueueByDefault(t *testing.T) {
	for loads, queue := range map[int]int{0: 1000, -1: 1000, 7: 70, math.MaxInt: maxQueue} {
		if o := (&Options{MaxLoads: loads}).withDefaults(); o.MaxQueue != queue || o.check() != nil {
			t.Errorf("MaxLoads %d: MaxQueue %d", loads, o.MaxQueue)
		}
	}
}
