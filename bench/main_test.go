package bench

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "16") // what runs in parallel here has processes of its own, and mostly waits
	testenv.Main(m, leftBehind...)
}

// full asks for the sizes whose figures are reported, as `make compare` does. Otherwise each
// workload is as small as shows that it runs, and what depends on the time that something takes is
// not asserted.
var full = os.Getenv("CACHEASIDE_ACCEPT") != ""

// size is n in full, else few.
func size[T any](n, few T) T {
	if full {
		return n
	}
	return few
}

// entrants are the peers of a table: all in full, else the library and two others, which differ
// from test to test, so that each has its turn. TestPeers… are of all. What takes the compiler
// long is only built with the tag accept, as by `make compare` and `make accept`.
func entrants(t *testing.T) []Peer {
	all := Peers()
	if full {
		return all
	}
	h := fnv.New32()
	h.Write([]byte(t.Name()))
	others := slices.DeleteFunc(slices.Clone(all), func(p Peer) bool { return p.Name == own })
	at := int(h.Sum32() % uint32(len(others)))
	return slices.DeleteFunc(all, func(p Peer) bool {
		return p.Name != own && p.Name != others[at].Name && p.Name != others[(at+1)%len(others)].Name
	})
}

// publish logs a table, and puts it where `make compare` collects them, behind those of the same
// test.
func publish(t *testing.T, table *Table) {
	t.Helper()
	var b strings.Builder
	table.WriteTo(&b)
	t.Log("\n" + b.String())
	if dir := os.Getenv("BENCH_TABLES"); dir != "" {
		name := fmt.Sprintf("%02d-%s.md", table.Section, strings.ReplaceAll(t.Name(), "/", "-"))
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err == nil {
			_, err = f.WriteString(b.String())
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// bar asserts a figure of which the README or docs/benchmarks.md boasts; what is timed is asserted
// in full only, and on a machine that has nothing else to do.
func bar(t *testing.T, what string, got, most float64) {
	t.Helper()
	verdict := "holds"
	if got > most {
		verdict = "FAILS"
	}
	t.Logf("bar: %s: %s, at most %s: %s", what, digits(got), digits(most), verdict)
	if got > most && full {
		t.Errorf("%s: %s, at most %s", what, digits(got), digits(most))
	}
}
