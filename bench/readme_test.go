package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A compared row is a row of a comparison: a column of a table that `make compare` has printed.
type compared struct {
	row, table, column string
	key                int // the column with the names of the peers
}

// comparisons are the rows of the comparison in docs/benchmarks.md.
var comparisons = []compared{
	{"hit in memory, 1 goroutine, ns", "Hits in memory, 1 goroutines", "ns", 0},
	{"… 128 goroutines", "Hits in memory, 128 goroutines", "ns", 0},
	{"hit in Redis, 1 goroutine, us", "Hits in Redis, 1 goroutines", "us", 0},
	{"… 4 goroutines", "Hits in Redis, 4 goroutines", "us", 0},
	{"… 128 goroutines", "Hits in Redis, 128 goroutines", "us", 0},
	{"a cold key, 4 processes x 250 callers: loads", "A cold key, four processes", "loads", 0},
	{"… p99 of the callers beyond the load, ms", "A cold key, four processes", "p99 beyond the load, ms", 0},
	{"… Redis commands", "A cold key, four processes", "Redis commands", 0},
	{"everything expires all the time: p99 of the hottest keys, ms", "A storm of expiry", "p99, ms", 0},
	{"… loads of one key at once", "A storm of expiry", "loads of one key at once, at most", 0},
	{"… loads sooner than the TTL allows", "A storm of expiry", "too soon", 0},
	{"invalidated by another process while it is loaded", "Old values that come late", "by another process", 0},
	{"… what a read gets that begins then", "Old values that come late", "in the process that loads, another has invalidated", 0},
	{"memory of another process is stale for, p99, ms", "Staleness in the memory of another process", "p99, ms", 0},
	{"Redis hangs, 1,000 callers with 300 ms: get the row, %", "Redis is hung", "with a value, %", 0},
	{"Redis killed, the same", "Redis is killed", "with a value, %", 0},
	{"batch of 100, half of it cached, us", "Batches of 100 keys, half of them in Redis", "us", 0},
	{"a real trace, memory for 10 % of its rows: accesses/s", "The trace orm-busy: 200,000 accesses, 22,024 keys", "accesses/s", 1},
	{"… all 5,000,000 of it, the fastest three", "The trace orm-busy: 5,000,000 accesses, 76,349 keys", "accesses/s", 1},
	{"memory for a row, bytes", "Memory per entry", "bytes an entry", 0},
}

// others are the peers that do not fit into README.md.
var others = []string{"entcache", "go-redis client-side", "redis.io recipe"}

// shortest are the rows of the comparison in README.md.
var shortest = []compared{
	{"hit in memory, 1 goroutine, ns", "Hits in memory, 1 goroutines", "ns", 0},
	{"hit in Redis, 4 goroutines, us", "Hits in Redis, 4 goroutines", "us", 0},
	{"… 128 goroutines", "Hits in Redis, 128 goroutines", "us", 0},
	{"a cold key, 4 processes x 250 callers: loads", "A cold key, four processes", "loads", 0},
	{"invalidated elsewhere during the load", "Old values that come late", "by another process", 0},
	{"Redis hangs, callers wait 300 ms: get the row, %", "Redis is hung", "with a value, %", 0},
}

// The documentation shows exactly the measured figures: the comparisons of README.md and
// docs/benchmarks.md, and each table of docs/benchmarks.md with the title of a table that `make
// compare` has printed.
func TestReadme(t *testing.T) {
	pages := make(map[string]string)
	for _, name := range []string{"README.md", "docs/benchmarks.md"} {
		text, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		pages[name] = string(text)
	}
	for name, of := range map[string]struct {
		rows    []compared
		without []string
	}{"README.md": {shortest, others}, "docs/benchmarks.md": {comparisons, nil}} {
		if want := comparison(t, of.rows, of.without); !strings.Contains(pages[name], want) {
			t.Errorf("the comparison of %s differs from the measured one:\n%s", name, want)
		}
	}
	whole := published(t)
	shown := tables(pages["docs/benchmarks.md"])
	checked := 0
	for title, table := range shown {
		if whole[title] == nil {
			continue
		}
		checked++
		if !slices.EqualFunc(table, whole[title], slices.Equal) {
			t.Errorf("docs/benchmarks.md: the table %q differs from the measured one", title)
		}
	}
	if checked < 8 {
		t.Errorf("docs/benchmarks.md shows %d measured tables, want at least 8", checked)
	}
}

func comparison(t *testing.T, comparisons []compared, without []string) string {
	t.Helper()
	measured := published(t)
	var names []string
	for _, row := range measured["The peers"][1:] { // the libraries first, then the floors
		if row[0] == "" || strings.HasPrefix(row[0], "raw ") {
			break
		}
		if strings.Contains(row[2], "Redis") && !slices.Contains(without, row[0]) {
			names = append(names, row[0])
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, c := range comparisons {
		table := measured[c.table]
		if table == nil {
			t.Fatalf("no table %q was published", c.table)
		}
		column := slices.Index(table[0], c.column)
		if column < 0 {
			t.Fatalf("the table %q has no column %q: %q", c.table, c.column, table[0])
		}
		fmt.Fprintf(&b, "| %s |", c.row)
		for _, name := range names {
			cell := "–"
			for _, row := range table[1:] {
				if peer, _, _ := strings.Cut(row[c.key], ","); peer == name && column < len(row) &&
					!strings.HasPrefix(row[column], "has no") && row[column] != "" {
					cell = row[column]
				}
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// published returns the tables of the last run by title, as lines of cells. The first line is the
// head.
func published(t *testing.T) map[string][][]string {
	t.Helper()
	files, err := filepath.Glob("tables/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal("no table was published", err)
	}
	all := map[string][][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for title, lines := range tables(string(text)) {
			all[title] = append(all[title], lines...)
		}
	}
	return all
}

// tables returns the tables of a page by their third-level headings.
func tables(text string) map[string][][]string {
	all := map[string][][]string{}
	title := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			title, _ = strings.CutPrefix(line, "### ")
		}
		if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|---") {
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			all[title] = append(all[title], cells)
		}
	}
	return all
}
