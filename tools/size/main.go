// Size prints the lines of code of each package of the library proper, and their sum. Blank lines
// and comments do not count. Tests, tools and test helpers do not count either.
package main

import (
	"cmp"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// library are the folders of the library proper, with all that is in them.
var library = []string{"internal", "bloom", "consistency", "canal", "lock", "meter", "msgpack", "otelcacheaside",
	"cacheasidetest"}

// tools are the folders in them that no user's program links.
var tools = []string{"internal/test", "internal/measure", "consistency/queuetest", "lock/locktest",
	"otelcacheaside/example"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	lines := make(map[string]int)
	count := func(path string) error {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		n, err := code(path)
		lines[filepath.Dir(path)] += n
		return err
	}
	root, err := filepath.Glob("*.go")
	if err != nil {
		return err
	}
	for _, path := range root {
		if err := count(path); err != nil {
			return err
		}
	}
	for _, dir := range library {
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && (slices.Contains(tools, path) || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return count(path)
		}); err != nil {
			return err
		}
	}
	sum := 0
	for _, dir := range slices.SortedFunc(maps.Keys(lines), func(a, b string) int {
		return cmp.Or(-cmp.Compare(lines[a], lines[b]), cmp.Compare(a, b))
	}) {
		if lines[dir] > 0 {
			fmt.Printf("%6d  %s\n", lines[dir], dir)
		}
		sum += lines[dir]
	}
	fmt.Printf("%6d  in all\n", sum)
	return nil
}

// code returns how many lines of a file have code.
func code(path string) (int, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	fset := token.NewFileSet()
	f := fset.AddFile(path, -1, len(src))
	var s scanner.Scanner
	s.Init(f, src, nil, 0)
	n, last := 0, 0
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return n, nil
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue
		}
		first := f.Line(pos)
		end := first + strings.Count(text, "\n")
		n += end - max(first, last+1) + 1
		last = max(last, end)
	}
}
