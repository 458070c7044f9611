package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"
)

// report writes the output, in less than 100 columns. It uses colour and shows progress only on a
// terminal.
type report struct {
	w        io.Writer
	terminal bool
}

func newReport(w io.Writer) *report {
	r := &report{w: w}
	if file, ok := w.(*os.File); ok {
		info, err := file.Stat()
		r.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" &&
			os.Getenv("TERM") != "dumb"
	}
	return r
}

const (
	plain = ""
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	reset = "\x1b[0m"
)

func (r *report) paint(colour, text string) string {
	if !r.terminal || colour == plain {
		return text
	}
	return colour + text + reset
}

func (r *report) line(text string) { fmt.Fprintln(r.w, strings.TrimRight("  "+text, " ")) }

func (r *report) title(text string) {
	r.line("")
	r.line(r.paint(bold, text))
	r.line("")
}

// step runs f and prints its duration. On a terminal it also prints the progress while f runs, if
// percent is not nil.
func (r *report) step(text string, percent func() int, f func() error) error {
	started := time.Now()
	text = fmt.Sprintf("  %-60s", text+" ...")
	fmt.Fprint(r.w, text)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for r.terminal && percent != nil {
			select {
			case <-time.After(100 * time.Millisecond):
				fmt.Fprintf(r.w, "\r%s%5d %%", text, percent())
			case <-stop:
				return
			}
		}
	}()
	err := f()
	close(stop)
	<-stopped
	if r.terminal {
		fmt.Fprint(r.w, "\r", text)
	}
	if err != nil {
		fmt.Fprintln(r.w, " stopped")
		return err
	}
	fmt.Fprintf(r.w, "%7s\n", seconds(time.Since(started)))
	return nil
}

// table prints rows under a header, the first column left-aligned and the others right-aligned.
func (r *report) table(header []string, rows [][]string, last int) {
	widths := make([]int, len(header))
	for _, row := range append(rows, header) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	draw := func(colour string, row []string) {
		var b strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString(cell + space)
			} else {
				b.WriteString("   " + space + cell)
			}
		}
		r.line(r.paint(colour, b.String()))
	}
	width := 3 * (len(header) - 1)
	for _, w := range widths {
		width += w
	}
	rule := r.paint(dim, strings.Repeat("─", width))
	draw(bold, header)
	r.line(rule)
	for i, row := range rows {
		if i == len(rows)-last {
			r.line(rule)
		}
		draw(plain, row)
	}
}

func (r *report) replay(p *replay) {
	r.title("1. The replay: which tier served the requests for product pages of a real shop")
	row := func(name string, a served) []string {
		out := []string{name}
		for _, n := range []int64{a.requests, a.memory, a.redis, a.shared, a.loads} {
			out = append(out, thousands(n))
		}
		return append(out, micros(a.p50), micros(a.p99))
	}
	var rows [][]string
	for i := range p.stats {
		rows = append(rows, row(fmt.Sprintf("cache %d", i+1), p.of(i)))
	}
	total := p.total()
	share := []string{"", "100.0 %"}
	for _, n := range []int64{total.memory, total.redis, total.shared, total.loads} {
		share = append(share, percent(n, total.requests))
	}
	rows = append(rows, row("all", total), append(share, "", ""))
	r.table([]string{"", "requests", "memory", "Redis", "shared", "database", "p50", "p99"}, rows, 2)
	r.line("")
	r.line("shared: served by a lookup that another request of the same process had started.")
	r.line(fmt.Sprintf("p50, p99: latency of a request; caches, Redis and database share the %d cores of this machine.",
		runtime.NumCPU()))
	r.line(fmt.Sprintf("%s requests in %s: %s per second.", thousands(total.requests), seconds(p.took),
		thousands(int64(float64(total.requests)/max(p.took.Seconds(), 1e-9)))))
	r.line(fmt.Sprintf("Without a cache the database would have been read %s times. It was read %s times,",
		thousands(total.requests), thousands(p.reads)))
	if p.check() == nil {
		r.line(r.paint(green, fmt.Sprintf("once for each of the %s distinct products: %s fewer reads.",
			thousands(p.distinct), percent(total.requests-p.reads, total.requests))))
	} else {
		r.line(r.paint(red, fmt.Sprintf("but there are %s distinct products: it should be once for each.",
			thousands(p.distinct))))
	}
}

func (r *report) failures(all []failure) {
	r.title("2. Six classic failures, without and with the library")
	const (
		name, counted, number = 13, 44, 10
		format                = "%-*s   %-*s   %s   %s"
		width                 = name + counted + 2*number + 9
	)
	rule := r.paint(dim, strings.Repeat("─", width))
	row := func(a, b, c, d, colourC, colourD string) {
		c, d = r.paint(colourC, fmt.Sprintf("%*s", number, c)), r.paint(colourD, fmt.Sprintf("%*s", number, d))
		r.line(fmt.Sprintf(format, name, a, counted, b, c, d))
	}
	row("", "", "without", "with", bold, bold)
	r.line(rule)
	for _, f := range all {
		row(f.name, f.counted, thousands(f.without), thousands(f.with), red, green)
		for _, text := range wrap(f.words, width-name-3) {
			r.line(fmt.Sprintf("%-*s   %s", name, "", r.paint(dim, text)))
		}
		r.line(rule)
	}
	r.line("")
}
