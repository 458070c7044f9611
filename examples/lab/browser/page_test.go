package browser

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// patient are flags of a lab in which no caller leaves and no command times out on a busy machine.
var patient = []string{"-patience", "1m", "-redis-timeout", "15s"}

// TestPage uses each switch on the page except one, and checks what the page shows.
func TestPage(t *testing.T) {
	t.Parallel()
	v := open(t, patient...)
	v.until(t, "#status", running)

	if v.wantsPictures() {
		time.Sleep(25 * time.Second) // so that the plots show something
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
		// The maps of plain keep the row for only some seconds, so the page itself records the
		// maximum.
		v.run(t, chromedp.Evaluate(`var red = {};
			for (const world of ["protected", "plain"]) {
				red[world] = 0;
				new MutationObserver(() => {
					red[world] = Math.max(red[world], document.querySelectorAll("[data-world=" + world + "] tbody tr:nth-child(4) td.stale").length);
				}).observe(document.querySelector("[data-world=" + world + "] tbody"), {childList: true});
			}`, nil))
		v.click(t, "[data-do=race]")
		protected, plain := v.results(t, "race", `then (\d) of 4 processes read the old row`)
		if protected != 0 || plain != 4 {
			t.Errorf("the old row in %d processes of protected, %d of plain", protected, plain)
		}
		red := func(world string) int { return v.number(t, "red."+world) }
		v.eventually(t, "all versions of the row red in plain: four maps and Redis",
			func() bool { return red("plain") == 5 })
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
	t.Run("bus", func(t *testing.T) {
		button := "[data-toggle=bus][data-process='2']"
		// memories returns how many processes of protected have the hottest row in memory: the
		// second process, and the others.
		memories := func() (second, others int) {
			const cells = `[...document.querySelectorAll("[data-world=protected] tbody tr:nth-child(1) td")].slice(0, 4).map((td) => td.textContent.startsWith("v"))`
			var known []bool
			v.run(t, chromedp.Evaluate(cells, &known))
			for p, yes := range known {
				if yes && p == 1 {
					second++
				} else if yes {
					others++
				}
			}
			return second, others
		}
		v.click(t, button)
		v.done(t, "bus", "Process 2 does not receive invalidations.")
		v.eventually(t, "an empty memory of process 2, and no other", func() bool {
			second, others := memories()
			return second == 0 && others == 3
		})
		v.click(t, button)
		v.done(t, "bus", "Process 2 receives invalidations again.")
		v.eventually(t, "memory of process 2", func() bool { second, _ := memories(); return second == 1 })
	})
	t.Run("frames from before a click", func(t *testing.T) {
		// A request is in flight for a long time. The lab has not received it, and continues to
		// send frames.
		v.run(t, chromedp.Evaluate(`var orders = [], arrive = [], really = window.fetch;
			window.fetch = (address, request) => {
				orders.push(JSON.parse(request.body).on);
				return new Promise((resolve) => arrive.push(() => resolve(new Response())));
			}`, nil))
		button := "[data-toggle=slow]"
		pressed := button + "[aria-pressed=true]"
		for _, on := range []bool{true, false} {
			v.click(t, button)
			at := v.number(t, "history.at(-1).at")
			v.eventually(t, "frames", func() bool {
				return v.number(t, "history.filter((p) => p.at > "+strconv.Itoa(at)+").length") >= 3
			})
			if is := v.number(t, "document.querySelectorAll(`"+pressed+"`).length") == 1; is != on {
				t.Errorf("the button shows %v, after a click for %v", is, on)
			}
		}
		var orders []bool
		v.run(t, chromedp.Evaluate(`orders`, &orders))
		if !slices.Equal(orders, []bool{true, false}) {
			t.Errorf("two clicks have sent %v", orders)
		}
		v.click(t, button) // after the failed request, the button shows the lab's state
		v.run(t, chromedp.Evaluate(`arrive.forEach((f) => f()); window.fetch = really; 0`, nil))
		v.eventually(t, "the button as it was", func() bool { return v.number(t, "document.querySelectorAll(`"+pressed+"`).length") == 0 })
	})
	t.Run("database", func(t *testing.T) {
		v.traffic(t, 400, 0)
		v.eventually(t, "rows in Redis", func() bool {
			return v.number(t, `[...document.querySelectorAll("[data-world=protected] tbody td:nth-child(6)")].slice(0, 3).filter((td) => td.textContent.startsWith("v")).length`) == 3
		})
		v.toggle(t, "fail", "The database fails.", "The database works again.", func() {
			v.click(t, "[data-do=expire]")
			protected, plain := v.results(t, "expire", `expire\. .* ([\d,]+) errors?;`)
			if protected*3 > plain { // protected has not cached rows that have just changed
				t.Errorf("%d errors in protected, %d in plain", protected, plain)
			}
		})
		v.toggle(t, "slow", "A query takes 500 ms.", "A query takes 20 ms again.", func() {})
		v.traffic(t, 400, 5)
	})
	t.Run("flush", func(t *testing.T) {
		// There must be reads in the measured time.
		v.eventually(t, "loads after a flush in both worlds", func() bool {
			const last = `(JSON.parse(shown.protected).findLast((event) => event.switch === "flush") || {at: 0}).at`
			was := v.number(t, last)
			v.click(t, "[data-do=flush]")
			v.eventually(t, "a line", func() bool { return v.number(t, last) > was })
			protected, plain := v.results(t, "flush", `emptied\. .* ([\d,]+) loads?[,;]`)
			return protected > 0 && plain > 0
		})
	})
	t.Run("protection", func(t *testing.T) {
		v.click(t, "[data-protection=bloom]")
		v.until(t, "[data-switch=protection] dd.protected", func(s string) bool {
			return strings.HasPrefix(s, "bloom off. In")
		})
		v.click(t, "[data-do=absent]")
		v.until(t, "[data-switch=absent] dd.protected", regexp.MustCompile(`do not exist: 1,\d\d\d loads`).MatchString)
		v.click(t, "[data-protection=bloom]")
		v.until(t, "[data-switch=protection] dd.protected", func(s string) bool {
			return strings.HasPrefix(s, "bloom on. In")
		})
	})
	t.Run("traffic", func(t *testing.T) {
		v.traffic(t, 800, 10)
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
			if colours < 4 { // the grid, its labels, and a line for each world
				t.Errorf("plot %d has %d colours", i, colours)
			}
		}
	})
	t.Run("overdue", func(t *testing.T) {
		if n := v.text(t, "[data-world=protected] [data-tile=overdue]"); n != "0" {
			t.Errorf("%s values in protected were older than MaxStaleness", n)
		}
		n, err := strconv.Atoi(strings.ReplaceAll(v.text(t, "[data-world=plain] [data-tile=stale]"), ",", ""))
		if err != nil || n == 0 {
			t.Errorf("%d stale values in plain, %v", n, err)
		}
	})
	v.end(t)
}

// TestRedisFails kills and freezes Redis in a lab with the usual timeouts of protected. Callers
// would wait much longer, but those of protected need not. There are few callers, because all those
// of plain continue at once when Redis is thawed.
func TestRedisFails(t *testing.T) {
	t.Parallel()
	v := open(t, "-patience", "8s")
	v.until(t, "#status", running)
	v.traffic(t, 50, 5)
	t.Run("kill", func(t *testing.T) {
		v.toggle(t, "kill", "Redis is killed.", "Redis is started again.", func() {
			if protected, _ := v.results(t, "kill", `killed\. .* ([\d,]+) errors?;`); protected != 0 {
				t.Errorf("%d errors in protected", protected)
			}
			v.picture(t, "killed", true)
		})
		if protected, _ := v.results(t, "kill", `again\. .* ([\d,]+) stale values?`); protected != 0 {
			t.Logf("%d stale values in protected; memory may be, for some milliseconds", protected)
		}
	})
	t.Run("freeze", func(t *testing.T) {
		v.toggle(t, "freeze", "Redis is frozen.", "Redis is thawed.", func() {
			if protected, _ := v.results(t, "freeze", `frozen\. .* ([\d,]+) errors?;`); protected != 0 {
				t.Errorf("%d errors in protected", protected)
			}
			was := v.text(t, "[data-world=plain] [data-tile=errors]")
			v.until(t, "[data-world=plain] [data-tile=errors]", func(s string) bool { return s != was })
		})
		v.until(t, "[data-world=protected] tbody tr:nth-child(1) td:nth-child(2)", func(s string) bool {
			return strings.HasPrefix(s, "v")
		})
	})
	if n := v.text(t, "[data-world=protected] [data-tile=errors]"); n != "0" {
		t.Errorf("%s errors in protected", n)
	}
	v.end(t)
}

// toggle turns a switch on, waits for its line, runs do, and turns the switch off.
func (v *visit) toggle(t *testing.T, name, on, off string, do func()) {
	t.Helper()
	button := "[data-toggle=" + name + "]"
	was := v.text(t, button)
	v.click(t, button)
	v.done(t, name, on)
	v.until(t, button, func(s string) bool { return s != was })
	do()
	v.click(t, button)
	v.done(t, name, off)
	v.until(t, button, func(s string) bool { return s == was })
}

// traffic sets the reads and writes per second.
func (v *visit) traffic(t *testing.T, reads, writes int) {
	t.Helper()
	v.run(t, chromedp.Evaluate(fmt.Sprintf(`for (const [id, value] of [["reads", %d], ["writes", %d]]) {
		const e = document.getElementById(id);
		e.value = value;
		if (id === "writes") e.dispatchEvent(new Event("change"));
	}`, reads, writes), nil))
	v.eventually(t, "a line of it", func() bool {
		return strings.Contains(v.text(t, "[data-world=protected] .log"),
			fmt.Sprintf("%d reads and %d writes a second. In the first", reads, writes))
	})
	v.until(t, "#reads-now", func(s string) bool { return s == strconv.Itoa(reads) })
	v.until(t, "#writes-now", func(s string) bool { return s == strconv.Itoa(writes) })
}

// eventually waits until done returns true.
func (v *visit) eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hang); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the page does not reach: " + what)
		}
	}
}
