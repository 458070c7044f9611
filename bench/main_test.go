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
	flag.Set("test.parallel", "16") // parallel tests run in processes of their own, and mostly wait
	testenv.Main(m, leftBehind...)
}

// full selects the sizes whose figures are reported, as `make compare` does. Otherwise each
// workload is just large enough to show that it runs, and nothing that depends on time is asserted.
var full = os.Getenv("CACHEASIDE_ACCEPT") != ""

// size returns n in full, otherwise few.
func size[T any](n, few T) T {
	if full {
		return n
	}
	return few
}

// entrants returns the peers of a table. In full these are all peers, otherwise this library and
// two others, which change from test to test so that each is tested. TestPeers… run with all peers.
// Peers that take long to compile need the tag accept, which `make compare` and `make accept` set.
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

// publish logs a table, and appends it to the tables of the same test that `make compare` collects.
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

// bar asserts the limit of a figure that the README or docs/benchmarks.md states. It asserts times
// in full only, on a machine without other load.
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
