package bench

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

const oneCallers = 10

// mishap is something that goes wrong for one caller, or in the load function.
type mishap struct {
	name string
	run  func(t *testing.T, p *oneProcess) string
	want string // of this library
}

var mishaps = []mishap{
	{"the load panics", func(t *testing.T, p *oneProcess) string { return p.ends(t, "panic") }, "10 errors; then a value"},
	{"it ends its goroutine (runtime.Goexit)", func(t *testing.T, p *oneProcess) string { return p.ends(t, "goexit") }, "10 errors; then a value"},
	{"the first caller leaves", func(t *testing.T, p *oneProcess) string { return p.leaves(t) }, ""},
	{"a deadline of 50 ms, a load of 1 s", func(t *testing.T, p *oneProcess) string { return p.deadline(t, false) }, ""},
	{"and the load ignores its context", func(t *testing.T, p *oneProcess) string { return p.deadline(t, true) }, ""},
}

// oneProcess is a process of its own for each mishap, since it may not outlive that.
type oneProcess struct {
	crew
	peer Peer
}

const crashes = "crashes the process"

// get is an order, and what its callers got, or crashes.
func (p *oneProcess) get(t *testing.T, o childOrder) (got []callerGot, crashed bool) {
	t.Helper()
	o.Do, o.Keys = "get", []string{"row"}
	a, err := p.crew[0].order(o)()
	if err != nil && !errors.Is(err, errGone) {
		t.Fatal(err)
	}
	return a.Callers, err != nil
}

// ends is a load that ends in no ordinary way.
func (p *oneProcess) ends(t *testing.T, how string) string {
	p.rows(t, map[string]dbRow{"row": {Value: "row", Takes: 50 * time.Millisecond, Ends: how}})
	got, crashed := p.get(t, childOrder{Callers: oneCallers, Within: time.Second})
	if crashed {
		return crashes
	}
	time.Sleep(1200 * time.Millisecond) // a failed load may be remembered for a second
	select {
	case <-p.crew[0].gone:
		return crashes
	default:
	}
	p.rows(t, map[string]dbRow{"row": {Value: "row"}})
	then, crashed := p.get(t, childOrder{Within: time.Second})
	if crashed {
		return crashes
	}
	return describe(got) + "; then " + strings.Replace(describe(then), "1 ", "a ", 1)
}

// leaves is a first caller whose context is cancelled in the middle of the load.
func (p *oneProcess) leaves(t *testing.T) string {
	p.rows(t, map[string]dbRow{"row": {Value: "row", Takes: 150 * time.Millisecond}})
	got, crashed := p.get(t, childOrder{Callers: oneCallers, Cancel: 60 * time.Millisecond, Within: 2 * time.Second})
	if crashed {
		return crashes
	}
	loads := len(p.loads(t))
	if p.peer.Name == own && (failed(got[1:]) > 0 || loads > 2) {
		t.Errorf("the others got %s, by %d loads", describe(got[1:]), loads)
	}
	return fmt.Sprintf("it waits for %s ms; the others: %s, loads: %d", digits(float64(got[0].Took)/1e6), describe(got[1:]), loads)
}

// deadline is how long a caller waits whose time is up before the load is over.
func (p *oneProcess) deadline(t *testing.T, deaf bool) string {
	p.rows(t, map[string]dbRow{"row": {Value: "row", Takes: time.Second, Deaf: deaf}})
	got, crashed := p.get(t, childOrder{Deadline: 50 * time.Millisecond, Within: 2 * time.Second})
	if crashed {
		return crashes
	}
	waited := float64(got[0].Took) / 1e6
	if p.peer.Name == own {
		bar(t, "a caller with a deadline of 50 ms waits, ms", waited, 60)
	}
	return fmt.Sprintf("%s ms: %s", digits(waited), describe(got))
}

// describe counts what callers got.
func describe(callers []callerGot) string {
	var parts []string
	left := len(callers)
	count := func(n int, one, many string) {
		left -= n
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprint(n, " ", many))
		}
	}
	by := errorsOf(callers)
	count(by[""], "value", "values")
	count(by[gotAbsent], `"no such row"`, `times "no such row"`)
	count(by[gotNothing], "nil without an error", "times nil without an error")
	count(by[gotPanic], "panic in the caller", "panics in the callers")
	count(by[gotExit], "caller's goroutine ends", "callers' goroutines end")
	count(by[gotNever], "caller hangs", "callers hang")
	count(left, "error", "errors")
	return strings.Join(parts, ", ")
}

// One caller's trouble, and what it is to the others.
func TestOneCaller(t *testing.T) {
	table := &Table{Section: 10, Title: "One caller's trouble",
		Text: fmt.Sprintf("%d callers of one process wait for the load of one row, which panics, or ends its goroutine; then, 1.2 s later, the row is read once more, and its load does what it should. "+
			"The first of %d callers cancels its context after 60 ms of a load of 150 ms. A caller is alone, and its context ends long before the load. A panic that reaches the goroutine of a caller does not end the process, as in a server of net/http.", oneCallers, oneCallers),
		Head: []string{""}}
	for _, m := range mishaps {
		table.Head = append(table.Head, m.name)
	}
	peers := Peers()
	rows := make([][]any, len(peers))
	t.Run("all", func(t *testing.T) {
		for i, p := range peers {
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				rows[i] = make([]any, len(mishaps)+1)
				rows[i][0] = entrant(p)
				for j, m := range mishaps {
					t.Run(m.name, func(t *testing.T) {
						var addr string
						if p.Redis {
							addr = testenv.StartRedis(t).Addr
						}
						rows[i][j+1] = m.run(t, &oneProcess{spawnCrew(t, p, 1, Config{Redis: addr, TTL: time.Minute}), p})
						if p.Name == own && m.want != "" && rows[i][j+1] != m.want {
							t.Error(rows[i][j+1])
						}
					})
				}
			})
		}
	})
	for _, row := range rows {
		if row != nil {
			table.Row(row...)
		}
	}
	publish(t, table)
}
