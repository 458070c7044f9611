package browser

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestPage throws each switch on the page, and looks at what the page shows of it.
func TestPage(t *testing.T) {
	v := open(t)
	running := func(s string) bool { return strings.HasPrefix(s, "running") }
	v.until(t, "#status", running)

	if v.wantsPictures() {
		time.Sleep(25 * time.Second) // something to be seen
	}
	v.picture(t, "overview", false)
	var wide bool
	v.run(t, chromedp.Evaluate(`document.documentElement.scrollWidth > document.documentElement.clientWidth`, &wide))
	if wide {
		t.Error("the page is wider than the window")
	}

	t.Run("stampede", func(t *testing.T) {
		v.click(t, "[data-do=stampede]")
		protected, plain := v.results(t, "stampede", `cold row: ([\d,]+) loads?,`)
		if protected != 1 || plain < 20 {
			t.Errorf("%d loads in protected, %d in plain", protected, plain)
		}
		v.picture(t, "stampede", false)
	})
	t.Run("race", func(t *testing.T) {
		v.click(t, "[data-do=race]")
		protected, plain := v.results(t, "race", `then (\d) of 4 processes read the old row`)
		if protected != 0 || plain != 4 {
			t.Errorf("the old row in %d processes of protected, %d of plain", protected, plain)
		}
		red := func(world string) int {
			var n int
			v.run(t, chromedp.Evaluate(`document.querySelectorAll("[data-world=`+world+`] tbody tr:nth-child(4) td.stale").length`, &n))
			return n
		}
		v.until(t, "[data-world=plain] tbody tr:nth-child(4)", func(s string) bool { return strings.Contains(s, "old") })
		if n := red("plain"); n != 5 {
			t.Errorf("%d red versions of the row in plain", n)
		}
		if n := red("protected"); n != 0 {
			t.Errorf("%d red versions of the row in protected", n)
		}
		v.picture(t, "race", false)
	})
	t.Run("absent", func(t *testing.T) {
		v.click(t, "[data-do=absent]")
		protected, plain := v.results(t, "absent", `do not exist: ([\d,]+) loads?,`)
		if protected > 100 || plain != 2000 {
			t.Errorf("%d loads in protected, %d in plain", protected, plain)
		}
	})
	t.Run("kill", func(t *testing.T) {
		v.toggle(t, "kill", "Redis is killed", func() {
			if protected, _ := v.results(t, "kill", `killed\. .* ([\d,]+) errors?;`); protected != 0 {
				t.Errorf("%d errors in protected", protected)
			}
			v.picture(t, "killed", true)
		})
		if protected, _ := v.results(t, "kill", `again\. .* ([\d,]+) stale answers?`); protected != 0 {
			t.Logf("%d stale answers in protected; memory may be, for some milliseconds", protected)
		}
	})
	t.Run("freeze", func(t *testing.T) {
		v.toggle(t, "freeze", "Redis is frozen", func() {
			if protected, _ := v.results(t, "freeze", `frozen\. .* ([\d,]+) errors?;`); protected != 0 {
				t.Errorf("%d errors in protected", protected)
			}
			was := v.text(t, "[data-world=plain] [data-tile=errors]")
			v.until(t, "[data-world=plain] [data-tile=errors]", func(s string) bool { return s != was })
		})
	})
	t.Run("channel", func(t *testing.T) {
		const memory = "[data-world=protected] tbody tr:nth-child(1) td:nth-child(3)"
		button := "[data-toggle=channel][data-process='2']"
		v.click(t, button)
		v.until(t, memory, func(s string) bool { return s == "–" })
		v.click(t, button)
		v.until(t, memory, func(s string) bool { return strings.HasPrefix(s, "v") })
	})
	t.Run("database", func(t *testing.T) {
		v.toggle(t, "fail", "The database fails", func() {
			v.click(t, "[data-do=expire]")
			protected, plain := v.results(t, "expire", `expire\. .* ([\d,]+) errors?;`)
			if protected*3 > plain { // what has just been changed is in no cache of protected
				t.Errorf("%d errors in protected, %d in plain", protected, plain)
			}
		})
		v.toggle(t, "slow", "A query takes 500 ms", func() {})
	})
	t.Run("flush", func(t *testing.T) {
		v.click(t, "[data-do=flush]")
		if protected, plain := v.results(t, "flush", `emptied\. .* ([\d,]+) loads?[,;]`); protected == 0 || plain == 0 {
			t.Errorf("%d loads in protected, %d in plain", protected, plain)
		}
	})
	t.Run("protection", func(t *testing.T) {
		v.click(t, "[data-protection=bloom]")
		v.until(t, "[data-switch=protection] dd.protected", func(s string) bool { return strings.HasPrefix(s, "bloom off. In") })
		v.click(t, "[data-do=absent]")
		v.until(t, "[data-switch=absent] dd.protected", regexp.MustCompile(`do not exist: 1,\d\d\d loads`).MatchString)
		v.click(t, "[data-protection=bloom]")
		v.until(t, "[data-switch=protection] dd.protected", func(s string) bool { return strings.HasPrefix(s, "bloom on. In") })
	})
	t.Run("traffic", func(t *testing.T) {
		v.run(t, chromedp.Evaluate(`for (const [id, value] of [["reads", 800], ["writes", 10]]) {
			const e = document.getElementById(id);
			e.value = value;
			if (id === "writes") e.dispatchEvent(new Event("change"));
		}`, nil))
		v.until(t, "#reads-now", func(s string) bool { return s == "800" })
	})
	t.Run("plots", func(t *testing.T) {
		var inked []int
		v.run(t, chromedp.Evaluate(`[...document.querySelectorAll("canvas")].map((c) => {
			const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
			const colours = new Set();
			for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 200) colours.add((d[i] << 16) + (d[i + 1] << 8) + d[i + 2]);
			return colours.size;
		})`, &inked))
		if len(inked) != 6 {
			t.Fatalf("%d plots", len(inked))
		}
		for i, colours := range inked {
			if colours < 4 { // the grid, its figures, and a line of each world
				t.Errorf("plot %d has %d colours", i, colours)
			}
		}
	})
	t.Run("overdue", func(t *testing.T) {
		if n := v.text(t, "[data-world=protected] [data-tile=overdue]"); n != "0" {
			t.Errorf("%s answers in protected were older than MaxStaleness", n)
		}
		n, err := strconv.Atoi(strings.ReplaceAll(v.text(t, "[data-world=plain] [data-tile=stale]"), ",", ""))
		if err != nil || n == 0 {
			t.Errorf("%d stale answers in plain, %v", n, err)
		}
	})
	v.until(t, "#status", running)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, trouble := range v.troubles {
		t.Error(trouble)
	}
	if v.requests < 10 {
		t.Errorf("only %d requests were seen", v.requests)
	}
}

// toggle throws a switch that stays, waits for its line, and throws it back after do.
func (v *visit) toggle(t *testing.T, name, line string, do func()) {
	t.Helper()
	button := "[data-toggle=" + name + "]"
	off := v.text(t, button)
	v.click(t, button)
	v.until(t, "[data-world=protected] .log", func(s string) bool { return strings.Contains(s, line) })
	v.until(t, button, func(s string) bool { return s != off })
	do()
	v.click(t, button)
	v.until(t, button, func(s string) bool { return s == off })
}
