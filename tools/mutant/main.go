// Command mutant removes the guards of the library's promises one by one, and shows that the tests
// named for a guard fail without it.
//
//	go run ./tools/mutant [-check] [-share N] [-build] [NAME...]
//	go run ./tools/mutant -rename OLD=NEW
//
// The files in the folder guards list the guards. Each entry names the promise, its tests, and the
// edits that remove the guard. The tool changes no file of the repository: it writes patched copies
// to a temporary folder, and an overlay (go help build) that replaces the originals. A patched
// function contains its own body and one for each of its guards. The environment variable
// CACHEASIDE_MUTANT chooses between them when a program starts, so that one build of a package's
// tests is enough for all its guards. Without that variable nothing changes.
//
// With -check the tool only reports entries whose old text is not found exactly once, whose new
// text does not compile, or whose test does not exist. With -share N it runs one Nth of the rows, a
// different part for each commit. With -build it prints the overlay's path and keeps the files, to
// be used by hand:
//
//	CACHEASIDE_MUTANT=NAME go test -vet=off -overlay=PATH -run TEST ./PACKAGE
//
// With -rename it replaces a name in all entries: after a rename of a function, a type, a variable
// or a test in the code.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	check := flag.Bool("check", false, "only check that each edit applies and compiles, and that each test exists")
	share := flag.Int("share", 1, "run one Nth of the rows, a different part for each commit")
	build := flag.Bool("build", false, "only build the overlay, and print its path")
	rename := flag.String("rename", "", "only replace the name OLD by NEW in the guards: `OLD=NEW`")
	flag.Parse()
	var err error
	if *rename != "" {
		err = renameAll(*rename)
	} else {
		err = run(*check, *build, *share, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(check, build bool, share int, names []string) (err error) {
	ctx := context.Background()
	root, err := topFolder(ctx)
	if err != nil {
		return err
	}
	guards, err := readGuards(filepath.Join(root, "tools/mutant/guards"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(guards, func(g *guard) bool { return g.name == name }) {
			return fmt.Errorf("there is no guard %s", name)
		}
	}
	patches, err := locate(root, guards)
	if err != nil {
		return err
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
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if check {
		return compile(ctx, root, overlay, patches)
	}
	rows := choose(guards, names, share, commit(ctx, root))
	return (&runner{root: root, work: work, overlay: overlay}).runAll(rows, len(choose(guards, nil, 1, 0)))
}

// renameAll replaces a name in the files of guards. change is OLD=NEW.
func renameAll(change string) error {
	from, to, ok := strings.Cut(change, "=")
	if !ok || from == "" || to == "" {
		return fmt.Errorf("-rename %s: must be OLD=NEW", change)
	}
	root, err := topFolder(context.Background())
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "tools/mutant/guards", "*.txt"))
	if err != nil {
		return err
	}
	name := regexp.MustCompile(`\b` + regexp.QuoteMeta(from) + `\b`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d\n", filepath.Base(file), len(name.FindAllIndex(text, -1)))
		if err := os.WriteFile(file, name.ReplaceAllLiteral(text, []byte(to)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// topFolder returns the root folder of the checkout.
func topFolder(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	return strings.TrimSpace(string(out)), err
}

// commit returns a number that depends on the current commit, or 0.
func commit(ctx context.Context, root string) int {
	out, _ := exec.CommandContext(ctx, "git", "-C", root, "rev-parse", "--short=7", "HEAD").Output()
	n, _ := strconv.ParseInt(strings.TrimSpace(string(out)), 16, 64)
	return int(n)
}

// A row is a guard and one of its tests.
type row struct {
	*guard
	test
}

// choose returns the rows of the named guards, or of all if names is empty. If share is greater
// than 1, it returns only that part of them. The rows of a part belong to few folders, because
// building the tests of a folder takes longer than running most of its rows.
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
