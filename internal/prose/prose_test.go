package prose

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write scripts/prose.txt anew")

// TestProse: each flaw of a page is one that scripts/prose.txt lists, as of a page that is yet to
// be rewritten.
func TestProse(t *testing.T) {
	const root, exceptions = "../..", "../../scripts/prose.txt"
	pages := []string{"README.md", "SECURITY.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".md" {
			page, err := filepath.Rel(root, path)
			pages = append(pages, filepath.ToSlash(page))
			return err
		}
		return err
	})
	if err != nil || len(pages) < 20 {
		t.Fatal(pages, err)
	}
	b, err := os.ReadFile(exceptions)
	if err != nil && !*write {
		t.Fatal(err)
	}
	known := strings.Split(strings.TrimSpace(string(b)), "\n")
	var found []string
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, flaw := range Flaws(page, string(text)) {
			parts := strings.SplitN(flaw, ": ", 3)
			rule := parts[0] + ": " + parts[1]
			found = append(found, rule)
			if !*write && !slices.Contains(known, rule) {
				t.Error(flaw)
			}
		}
	}
	if *write {
		slices.Sort(found)
		if err := os.WriteFile(exceptions, []byte(strings.Join(found, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, rule := range known {
		if rule != "" && !slices.Contains(found, rule) {
			t.Errorf("scripts/prose.txt has what is so no more: %s (go test ./internal/prose -write)", rule)
		}
	}
}

// TestFlaws: what the test of the pages would say.
func TestFlaws(t *testing.T) {
	long := strings.Repeat("word ", 21)
	for text, want := range map[string]int{
		"A reader waits.":                         0,
		"Who reads waits.":                        1,
		"It is read. What was read is kept.":      1,
		"What is it? It is a cache.":              0,
		"# What it is":                            0,
		"- Who reads waits.":                      1,
		"1. Who reads waits.":                     1,
		"| a | What is read |":                    1,
		"It asks\nWho reads.":                     0,
		"**A name.** Who reads waits.":            1,
		"Say what is read, and who reads it.":     0,
		"```\nWho reads waits.\n```":              0,
		long:                                      1,
		"| " + long + " |":                        0,
		"```\n" + long + "\n```":                  0,
		"[a](" + strings.Repeat("x", 120) + ")":   0,
		"<!-- " + long + "-->":                    0,
		long + "\n\n" + long + "\n\nWho is, was.": 2,
	} {
		if all := Flaws("docs/x.md", text); len(all) != want {
			t.Errorf("%q: %q, want %d", text, all, want)
		}
	}
	if all := Flaws("README.md", strings.Repeat("a\n", mostOfPage)); len(all) != 1 {
		t.Error(all)
	}
}
