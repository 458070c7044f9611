package docs

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mostNames is how many lines `go doc -short` may have of a package that is not internal: a name
// each, a group of constants or variables being one. In the root and in package consistency, seven
// of them are the optional abilities of interfaces.
const mostNames, mostNamesOfRoot = 29, 40

// TestFewNames: the packages do not export more and more.
func TestFewNames(t *testing.T) {
	for _, module := range []string{".", "otelcacheaside", "canal/mysqlbinlog", "canal/pglogical", "canal/watermillsource", "consistency/watermillqueue"} {
		list := exec.CommandContext(t.Context(), "go", "list", "./...")
		list.Dir = module
		all, err := list.Output()
		if err != nil {
			t.Fatal(module, err)
		}
		for path := range strings.FieldsSeq(string(all)) {
			if strings.Contains(path, "/internal") {
				continue
			}
			show := exec.CommandContext(t.Context(), "go", "doc", "-short", path)
			show.Dir = module
			names, err := show.Output()
			if err != nil {
				t.Fatal(path, err)
			}
			most := mostNames
			if filepath.Base(path) == "cacheaside" && !strings.Contains(path, "/cmd/") {
				most = mostNamesOfRoot
			}
			if n := strings.Count(string(names), "\n"); n > most {
				t.Errorf("%s: go doc -short has %d lines, more than %d", path, n, most)
			}
		}
	}
}
