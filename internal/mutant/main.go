// Command mutant takes the guards of the library's promises out, one after the other, and
// shows that the tests named for them fail without them.
//
//	go run ./internal/mutant [-check] [-share N] [-build] [NAME...]
//
// The folder guards lists the guards. Each entry names what it guards, its tests, and the
// edits that take it out. No file of the repository is changed: patched copies of the files
// go to a temporary folder, and an overlay (go help build) puts them in their places. A patched
// function holds its own body and one for each guard that stands in it. The variable
// CACHEASIDE_MUTANT chooses among them when a program begins, so that one build of a
// package's tests serves all its guards. Without that variable nothing is different.
//
// With -check the tool only looks for entries whose old text is not found exactly once, and
// for tests that do not exist. With -share N it runs every Nth row, another share with each
// commit. With -build it prints the overlay's path and leaves it, to be used by hand:
//
//	CACHEASIDE_MUTANT=NAME go test -vet=off -overlay=PATH -run TEST ./PACKAGE
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	check := flag.Bool("check", false, "only check that each edit applies and each test exists")
	share := flag.Int("share", 1, "run every Nth row, another share with each commit")
	build := flag.Bool("build", false, "only build the overlay, and print its path")
	flag.Parse()
	if err := run(*check, *build, *share, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(check, build bool, share int, names []string) error {
	root, err := topFolder()
	if err != nil {
		return err
	}
	guards, err := readGuards(filepath.Join(root, "internal/mutant/guards"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(guards, func(g *guard) bool { return g.name == name }) {
			return fmt.Errorf("no guard is called %s", name)
		}
	}
	patches, err := locate(root, guards)
	if err != nil {
		return err
	}
	if check {
		return nil
	}
	work, err := os.MkdirTemp("", "cacheaside-mutants-")
	if err != nil {
		return err
	}
	overlay, err := writeOverlay(root, work, patches)
	if err != nil {
		return err
	}
	if build {
		fmt.Println(overlay)
		return nil
	}
	defer os.RemoveAll(work)
	rows := choose(guards, names, share, commit(root))
	return (&runner{root: root, work: work, overlay: overlay}).runAll(rows, len(choose(guards, nil, 1, 0)))
}

// topFolder is the root of the checkout.
func topFolder() (string, error) {
	out, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	return strings.TrimSpace(string(out)), err
}

// commit is a number that another commit has another of.
func commit(root string) int {
	out, _ := exec.Command("git", "-C", root, "rev-parse", "--short=7", "HEAD").Output()
	n, _ := strconv.ParseInt(strings.TrimSpace(string(out)), 16, 64)
	return int(n)
}

// row is a guard and one of the tests that see it missing.
type row struct {
	*guard
	test
}

// choose gives the rows of these guards (of all, if none is named), or a share of them: rows of few
// folders, since to build the tests of a folder takes longer than to run most of its rows.
func choose(guards []*guard, names []string, share, offset int) (rows []row) {
	for _, g := range guards {
		if len(names) > 0 && !slices.Contains(names, g.name) {
			continue
		}
		for _, t := range g.tests {
			rows = append(rows, row{g, t})
		}
	}
	if share <= 1 {
		return rows
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.folder, b.folder) })
	i := offset % share
	return rows[i*len(rows)/share : (i+1)*len(rows)/share]
}
