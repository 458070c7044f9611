package holders

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/lock/driver"
)

func TestParse(t *testing.T) {
	for _, text := range []string{"", "s A 1 2", "x AB=host-1/app@x:17 10 20;w C 0 30"} {
		s, err := Parse(text)
		if err != nil || s.String() != text {
			t.Errorf("%q becomes %q, %v", text, s, err)
		}
	}
	for _, bad := range []string{" ", "s A 1", "s A' 1 2", "ss A 1 2", "s A x 2", "s A 1 2;", "ID"} {
		if s, err := Parse(bad); err == nil {
			t.Errorf("%q is taken for %v", bad, s)
		}
	}
}

// TestTake: who prevents whom, and for how long.
func TestTake(t *testing.T) {
	const now = 1000
	reader, writer := driver.Request{Limit: 9, TTL: time.Second}, driver.Request{TTL: time.Second}
	waiting := writer
	waiting.Wait = true
	for name, c := range map[string]struct {
		state   string
		request driver.Request
		left    time.Duration // 0: granted
		marks   bool          // the request is added as Waiting
	}{
		"free":                       {"", writer, 0, false},
		"reader with reader":         {"s A 1 2000", reader, 0, false},
		"writer with reader":         {"s A 1 2000", writer, time.Millisecond, false},
		"waiting writer with reader": {"s A 1 2000", waiting, time.Millisecond, true},
		"reader with writer":         {"x A 1 3000", reader, 2 * time.Millisecond, false},
		"reader with waiting writer": {"s A 1 2000;w B 0 4000", reader, 3 * time.Millisecond, false},
		"writer with waiting writer": {"w B 0 4000", writer, 0, false},
		"writer after an end":        {"x A 1 1000", writer, 0, false},
		"last permit":                {"s A 1 2000", driver.Request{Limit: 2, TTL: time.Second}, 0, false},
		"no permit": {"s A 1 2000", driver.Request{Limit: 1, TTL: time.Second},
			time.Millisecond, false},
		"after its own lost reply":    {"x ME 1 2000", writer, 0, false},
		"its own mark, still lasting": {"s A 1 2000;w ME 0 1001000", waiting, time.Millisecond, true},
	} {
		s, err := Parse(c.state)
		if err != nil {
			t.Fatal(err)
		}
		next, left, _ := s.Take("ME", c.request, now, 7)
		held := next.Find("ME")
		marked := false
		for _, h := range next {
			marked = marked || h.ID == "ME" && h.Mode == Waiting
		}
		if left != c.left || (held != nil) != (c.left == 0) || held != nil && held.Token != 7 || marked != c.marks {
			t.Errorf("%s: %v, %v left", name, next, left)
		}
	}
}
