package prose

import (
	"cmp"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write scripts/prose.txt anew")

// TestProse checks all pages, all Go files that are not tests, and all descriptions of guards.
// scripts/prose.txt lists the exceptions, each as "file: rule: reason".
func TestProse(t *testing.T) {
	const root, exceptions = "../..", "../../scripts/prose.txt"
	pages := append([]string{"README.md", "SECURITY.md"}, below(t, root, "docs", ".md")...)
	files := slices.DeleteFunc(below(t, root, ".", ".go"), func(file string) bool {
		return strings.HasSuffix(file, "_test.go")
	})
	guards := below(t, root, "tools/mutant/guards", ".txt")
	if len(pages) < 20 || len(files) < 100 || len(guards) == 0 {
		t.Fatal(pages, files, guards)
	}
	b, err := os.ReadFile(exceptions)
	if err != nil && !*write {
		t.Fatal(err)
	}
	reasons := make(map[string]string) // by "file: rule"
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ": ", 3)
		if len(parts) < 3 || parts[2] == "" {
			if !*write {
				t.Errorf("scripts/prose.txt: no reason: %s", line)
			}
			continue
		}
		reasons[rule(parts)] = parts[2]
	}
	var found []string
	see := func(flaws []string) {
		for _, flaw := range flaws {
			rule := rule(partsOf(flaw))
			found = append(found, rule)
			if !*write && reasons[rule] == "" {
				t.Error(flaw)
			}
		}
	}
	for _, page := range pages {
		see(PageFlaws(page, read(t, root, page)))
	}
	for _, file := range files {
		flaws, err := GoFlaws(file, read(t, root, file))
		if err != nil {
			t.Fatal(err)
		}
		see(flaws)
	}
	for _, list := range guards {
		see(GuardFlaws(list, read(t, root, list)))
	}
	if *write {
		slices.Sort(found)
		found = slices.Compact(found)
		for i, rule := range found {
			found[i] += ": " + cmp.Or(reasons[rule], "to be rewritten")
		}
		if err := os.WriteFile(exceptions, []byte(strings.Join(found, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for rule := range reasons {
		if !slices.Contains(found, rule) {
			t.Errorf("scripts/prose.txt lists a flaw that does not exist any more: %s (go test ./tools/prose "+
				"-write)", rule)
		}
	}
}

// partsOf splits "file: rule: example".
func partsOf(flaw string) []string { return strings.SplitN(flaw, ": ", 3) }

func rule(parts []string) string { return parts[0] + ": " + parts[1] }

// below returns the files with this extension in a folder below root, relative to root.
func below(t *testing.T, root, folder, extension string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case !d.IsDir() && filepath.Ext(path) == extension:
			all = append(all, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func read(t *testing.T, root, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestPageFlaws shows what TestProse reports for a page.
func TestPageFlaws(t *testing.T) {
	long := strings.Repeat("word ", 21)
	for text, want := range map[string]int{
		"A reader waits.":                           0,
		"Who reads waits.":                          1,
		"It is read. What was read is kept.":        1,
		"What is it? It is a cache.":                0,
		"# What it is":                              0,
		"- Who reads waits.":                        1,
		"1. Who reads waits.":                       1,
		"| a | What is read |":                      1,
		"It asks\nWho reads.":                       0,
		"**A name.** Who reads waits.":              1,
		"Say what is read, and who reads it.":       0,
		"```\nWho reads waits.\n```":                0,
		long:                                        1,
		"| " + long + " |":                          0,
		"```\n" + long + "\n```":                    0,
		"[a](" + strings.Repeat("x", 120) + ")":     0,
		"<!-- " + long + "-->":                      0,
		long + "\n\n" + long + "\n\nWho is, was.":   2,
		"Nobody reads it.":                          1,
		"It was told\nat the most once.":            2,
		"`nobody` is a user. [a](nobody.md)":        0,
		"| a | a row that somebody reads, beside |": 2,
	} {
		if all := PageFlaws("docs/x.md", text); len(all) != want {
			t.Errorf("%q: %q, want %d", text, all, want)
		}
	}
}

// TestGoFlaws shows what TestProse reports for a Go file.
func TestGoFlaws(t *testing.T) {
	for source, want := range map[string]int{
		"// A reader waits.\nvar x int":                                       0,
		"// Who reads waits.\nvar x int":                                      1,
		"// It is read. (What was read\n// is kept.) Who reads waits.":        2,
		"// It does. Who\n// sets it: no reader.":                             1,
		"// It is:\n//   - Who reads waits.\n//   - A writer waits.":          1,
		"//\tbegin  it is read. Who reads waits.":                             1,
		"/* Whoever reads waits. */":                                          2,
		"// What is it? A cache.":                                             0,
		"var x int // What is kept.":                                          1,
		"var x = `\n// Who reads waits.`":                                     0,
		"func f() {\n\t// Whatever it is, it stays.\n}":                       2,
		"type a struct {\n\t// What names it.\n\tWhat string\n}":              0,
		"type a struct {\n\t// What names it. Who sets it.\n\tWhat string\n}": 1,
		"// It is heard.\nvar x = \"told\"":                                   1,
		"var x = \"it was told\"":                                             1,
		"func (t *told) f() {}":                                               0,
		"func (x told[K]) f() {}":                                             1,
		"// Code generated by x. DO NOT EDIT.\n\n// Who reads waits.":         -1,
	} {
		text := "package p\n\n" + source
		if want < 0 {
			want, text = 0, source+"\npackage p\n"
		}
		all, err := GoFlaws("x.go", text)
		if err != nil || len(all) != want {
			t.Errorf("%q: %q, want %d, %v", source, all, want, err)
		}
	}
	if all, err := GoFlaws("x.go", "// Who reads waits."); err == nil {
		t.Error("no package, no error:", all)
	}
}

// TestGuardFlaws shows what TestProse reports for a description of a guard.
func TestGuardFlaws(t *testing.T) {
	for description, want := range map[string]int{
		"a reader waits":                   0,
		"who reads waits":                  1,
		"nor does one that writes":         1,
		"a value is given to nobody":       1,
		strings.Repeat("word ", 21) + "is": 1,
	} {
		list := "# nobody\n\nguard nobody\n" + description +
			"\ntest . TestX\nedit x.go told\n-// nobody\n\nguard b\na line\n"
		if all := GuardFlaws("x.txt", list); len(all) != want {
			t.Errorf("%q: %q, want %d", description, all, want)
		}
	}
}
