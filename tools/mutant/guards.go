package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A guard is an entry of a guards file.
type guard struct {
	name, promise string
	tests         []test
	edits         []edit
	position      string // file and line of the entry
}

// A test fails without the guard.
type test struct {
	folder, name string // the package's folder, and the test, perhaps with a subtest
}

// An edit removes the guard, or a part of it, from a declaration.
type edit struct {
	file, in string // the file, and the function, Type.Method, variable or constant
	old, new []string
}

// readGuards reads all guards files in the folder. An entry is a paragraph:
//
//	guard NAME
//	the promise that it guards
//	test FOLDER TEST
//	edit FILE DECLARATION
//	-a line of the old text
//	+a line of the new text
//	 a line of both
//
// It may have several tests and several edits. The old text is a fragment of one line, or whole
// lines. Lines that begin with # are comments.
func readGuards(folder string) (guards []*guard, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil {
		return nil, err
	}
	var errs []error
	seen := map[string]string{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		some, err := parseGuards(filepath.Base(file), string(b))
		errs = append(errs, err)
		for _, g := range some {
			if position := seen[g.name]; position != "" {
				errs = append(errs, fmt.Errorf("%s: guard %s is already defined at %s", g.position, g.name, position))
			}
			seen[g.name] = g.position
		}
		guards = append(guards, some...)
	}
	if len(guards) == 0 {
		errs = append(errs, fmt.Errorf("%s lists no guards", folder))
	}
	return guards, errors.Join(errs...)
}

func parseGuards(file, text string) (guards []*guard, err error) {
	var errs []error
	var g *guard
	for i, line := range strings.Split(text, "\n") {
		position := fmt.Sprintf("%s:%d", file, i+1)
		fields := strings.Fields(line)
		inEdit := g != nil && len(g.edits) > 0 && line != "" && strings.ContainsRune("-+ ", rune(line[0]))
		switch {
		case inEdit:
			e := &g.edits[len(g.edits)-1]
			if line[0] != '+' {
				e.old = append(e.old, line[1:])
			}
			if line[0] != '-' {
				e.new = append(e.new, line[1:])
			}
		case len(fields) == 0:
			g = nil
		case strings.HasPrefix(line, "#"):
		case fields[0] == "guard" && len(fields) == 2 && g == nil:
			g = &guard{name: fields[1], position: position}
			guards = append(guards, g)
		case g == nil:
			errs = append(errs, fmt.Errorf("%s: an entry begins with guard NAME, and ends with an empty line",
				position))
		case g.promise == "":
			g.promise = line
		case fields[0] == "test" && len(fields) == 3:
			g.tests = append(g.tests, test{fields[1], fields[2]})
		case fields[0] == "edit" && len(fields) == 3:
			g.edits = append(g.edits, edit{file: fields[1], in: fields[2]})
		default:
			errs = append(errs, fmt.Errorf("%s: guard %s: cannot parse %q", position, g.name, line))
		}
	}
	for _, g := range guards {
		if len(g.tests) == 0 || len(g.edits) == 0 {
			errs = append(errs, fmt.Errorf("%s: guard %s needs a test and an edit", g.position, g.name))
		}
		for _, e := range g.edits {
			if len(e.old) == 0 {
				errs = append(errs, fmt.Errorf("%s: guard %s: an edit of %s in %s has no old text", g.position, g.name,
					e.in, e.file))
			}
		}
	}
	return guards, errors.Join(errs...)
}
