package bench

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const oneCallers = 10

var oneLoad = size(time.Second, 300*time.Millisecond) // the load of the caller with a deadline

// callerFailure is a failure of one caller or of the load function.
type callerFailure struct {
	name  string
	row   dbRow      // the row that is loaded
	get   childOrder // the callers
	again bool       // read it again later
	timed bool       // its times are reported: the peers run one after another
	cell  func(got []callerResult, loads int) string
}

var mishaps = []callerFailure{
	{name: "the load panics", row: dbRow{Value: "row", Takes: 50 * time.Millisecond, Ends: "panic"}, get: childOrder{Callers: oneCallers, Within: time.Second}, again: true},
	{name: "the load ends its goroutine (runtime.Goexit)", row: dbRow{Value: "row", Takes: 50 * time.Millisecond, Ends: "goexit"}, get: childOrder{Callers: oneCallers, Within: time.Second}, again: true},
	{name: "the first caller leaves", row: dbRow{Value: "row", Takes: 150 * time.Millisecond}, get: childOrder{Callers: oneCallers, Cancel: 60 * time.Millisecond, Within: time.Second}, timed: true,
		cell: func(got []callerResult, loads int) string {
			return fmt.Sprintf("it waits for %s ms; the others: %s; loads: %d", digits(float64(got[0].Took)/1e6),
				describe(got[1:]), loads)
		}},
	{name: "a deadline of 50 ms, a longer load", row: dbRow{Value: "row", Takes: oneLoad}, get: childOrder{Deadline: oneDeadline, Within: 2 * oneLoad}, timed: true, cell: waited},
	{name: "and that load ignores its context", row: dbRow{Value: "row", Takes: oneLoad, Deaf: true}, get: childOrder{Deadline: oneDeadline, Within: 2 * oneLoad}, timed: true, cell: waited},
}

const oneDeadline = 50 * time.Millisecond

func waited(got []callerResult, _ int) string {
	return fmt.Sprintf("%s ms: %s", digits(float64(got[0].Took)/1e6), describe(got))
}

const crashes = "crashes the process"

// oneProcess is the process for one callerFailure, which it may not survive.
type oneProcess struct {
	crew
	wait    func() (childReply, error)
	got     []callerResult
	crashed bool
}

// begin starts the callerFailure. end waits for its callers.
func (o *oneProcess) begin(t *testing.T, m callerFailure) {
	t.Helper()
	o.rows(t, map[string]dbRow{m.name: m.row})
	m.get.Do, m.get.Keys = "get", []string{m.name}
	o.wait = o.crew[0].order(m.get)
}

func (o *oneProcess) end(t *testing.T) []callerResult {
	t.Helper()
	a, err := o.wait()
	if err != nil && !errors.Is(err, errGone) {
		t.Fatal(err)
	}
	o.crashed = o.crashed || err != nil
	return a.Callers
}

// describe counts the results of callers.
func describe(callers []callerResult) string {
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

// readAgain lets the surviving processes read the row again, with a load that works.
func readAgain(t *testing.T, processes []*oneProcess, m callerFailure) []string {
	t.Helper()
	for _, p := range processes {
		select {
		case <-p.crew[0].gone:
			p.crashed = true
		default:
		}
		if !p.crashed {
			p.begin(t, m)
		}
	}
	cells := make([]string, len(processes))
	for i, p := range processes {
		if p.crashed {
			continue
		}
		got := p.end(t)
		if p.crashed {
			continue
		}
		cells[i] = strings.Replace(describe(got), "1 ", "a ", 1)
		if took := got[0].Took; took > 100*time.Millisecond && got[0].Err != gotNever {
			cells[i] += fmt.Sprintf(" after %.1f s", took.Seconds())
		}
	}
	return cells
}

// checkOwn asserts the promises of this library.
func checkOwn(t *testing.T, m callerFailure, got []callerResult, loads int, cell string) {
	t.Helper()
	switch {
	case m.again:
		want := fmt.Sprintf("%d errors; then a value", oneCallers)
		// A busy machine may be slow.
		if cell != want && (full || !strings.HasPrefix(cell, want+" after ")) {
			t.Errorf("%s: %s", m.name, cell)
		}
	case m.get.Cancel > 0:
		if failed(got[1:]) > 0 || loads > 2 {
			t.Errorf("%s: %s", m.name, cell)
		}
	default:
		bar(t, m.name+": waits, ms", float64(got[0].Took)/1e6, 60)
	}
}

// TestOneCaller shows what the failure of one caller means for the other callers.
func TestOneCaller(t *testing.T) {
	const later = 1200 * time.Millisecond // a failed load may be remembered for a second
	within := size(4*time.Second, time.Second)
	table := &Table{Section: 10, Title: "One caller's trouble",
		Text: fmt.Sprintf("%d callers of one process wait for the load of one row, which panics or ends its "+
			"goroutine. %v later, the row is read again, and its load works. "+
			"The first of %d callers cancels its context 60 ms after the start of a load that takes 150 ms. A single "+
			"caller's context ends long before the load, which takes %v. A load ends with the context that the "+
			"library passes to it, except in the last column. "+
			"A panic that reaches the goroutine of a caller does not end the process, as in a net/http server. A "+
			"call that has not returned within %v hangs.", oneCallers, later, oneCallers, oneLoad, within),
		Head: []string{""}}
	peers := entrants(t)
	rows := make([][]any, len(peers))
	servers := make([]string, len(peers))
	for i, p := range peers {
		rows[i] = []any{entrant(p)}
		if p.Redis {
			servers[i] = testenv.StartRedis(t).Addr
		}
	}
	for _, m := range mishaps {
		table.Head = append(table.Head, m.name)
		processes := make([]*oneProcess, len(peers))
		for i, p := range peers {
			processes[i] = &oneProcess{crew: spawnCrew(t, p, 1,
				Config{Redis: servers[i], TTL: time.Minute, Patient: !full})}
		}
		for _, p := range processes {
			p.begin(t, m)
			if full && m.timed {
				p.got = p.end(t)
			}
		}
		for _, p := range processes {
			if p.got == nil {
				p.got = p.end(t)
			}
		}
		var again []string
		if m.again {
			time.Sleep(later)
			of := callerFailure{name: m.name, row: dbRow{Value: "row"}, get: childOrder{Within: within}}
			again = readAgain(t, processes, of)
		}
		for i, p := range processes {
			cell := crashes
			if !p.crashed {
				loads := len(p.loads(t))
				if m.again {
					cell = describe(p.got) + "; then " + again[i]
				} else {
					cell = m.cell(p.got, loads)
				}
				if peers[i].Name == own {
					checkOwn(t, m, p.got, loads, cell)
				}
			}
			rows[i] = append(rows[i], cell)
			p.crew[0].Kill()
		}
	}
	for _, row := range rows {
		table.Row(row...)
	}
	publish(t, table)
}
