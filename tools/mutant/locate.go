package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A source is a file that contains guards.
type source struct {
	path  string // absolute
	text  string
	set   *token.FileSet
	file  *ast.File
	decls map[string]*decl
}

// A decl is a declaration that contains guards: a function, or the specification of variables or
// constants.
type decl struct {
	name     string
	node     ast.Node
	from, to int // offsets of the beginning of its first line and the end of its last line
	variants []*variant
}

// A variant is a declaration without one of its guards.
type variant struct {
	guard  string
	lines  []string // after an edit, one element holds all new lines, and those of the other old lines are ""
	edited map[int]bool
}

func (v *variant) text() string { return strings.Join(v.lines, "\n") }

// locate finds the place of each edit. Its error lists the guards whose old text is not found
// exactly once in the declaration, or whose test does not exist.
func locate(root string, guards []*guard) (map[string]*source, error) {
	sources := map[string]*source{}
	tests := map[string]string{}
	var errs []error
	for _, g := range guards {
		for _, e := range g.edits {
			s := sources[e.file]
			if s == nil {
				var err error
				if s, err = readSource(filepath.Join(root, e.file)); err != nil {
					errs = append(errs, fmt.Errorf("%s: guard %s: %w", g.position, g.name, err))
					continue
				}
				sources[e.file] = s
			}
			if err := s.apply(g.name, e); err != nil {
				errs = append(errs, fmt.Errorf("%s: guard %s: %s: %w", g.position, g.name, e.file, err))
			}
		}
		for _, t := range g.tests {
			if _, ok := tests[t.folder]; !ok {
				tests[t.folder] = testText(filepath.Join(root, t.folder))
			}
			name, _, _ := strings.Cut(t.name, "/")
			if !strings.Contains(tests[t.folder], "\nfunc "+name+"(t *testing.T)") {
				errs = append(errs, fmt.Errorf("%s: guard %s: there is no test %s in %s", g.position, g.name, name,
					t.folder))
			}
		}
	}
	return sources, errors.Join(errs...)
}

// testText returns the concatenated text of a folder's test files.
func testText(folder string) string {
	files, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
	var b strings.Builder
	for _, f := range files {
		text, _ := os.ReadFile(f)
		b.WriteString("\n")
		b.Write(text)
	}
	return b.String()
}

func readSource(path string) (*source, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &source{path: path, text: string(b), set: token.NewFileSet(), decls: map[string]*decl{}}
	if s.file, err = parser.ParseFile(s.set, path, b, parser.ParseComments); err != nil {
		return nil, err
	}
	for _, d := range s.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			s.add(nameOf(d), d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					s.add(v.Names[0].Name, v)
				}
			}
		}
	}
	return s, nil
}

// nameOf returns the name of a function, or Type.Method.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

func (s *source) add(name string, node ast.Node) {
	from := strings.LastIndexByte(s.text[:s.offset(node.Pos())], '\n') + 1
	to := s.offset(node.End())
	if n := strings.IndexByte(s.text[to:], '\n'); n >= 0 {
		to += n
	}
	s.decls[name] = &decl{name: name, node: node, from: from, to: to}
}

func (s *source) offset(p token.Pos) int { return s.set.PositionFor(p, false).Offset }

// apply applies an edit to the guard's variant of the declaration. The old text of each edit is
// looked up in the original text.
func (s *source) apply(guard string, e edit) error {
	d := s.decls[e.in]
	if d == nil {
		return fmt.Errorf("there is no %s", e.in)
	}
	lines := strings.Split(s.text[d.from:d.to], "\n")
	line, err := find(lines, e.old)
	if errors.Is(err, errNotFound) && len(e.old) == 1 {
		line, e.new, err = findFragment(lines, e)
	}
	if err != nil {
		return fmt.Errorf("%s: %w:\n%s", e.in, err, strings.Join(e.old, "\n"))
	}
	i := slices.IndexFunc(d.variants, func(v *variant) bool { return v.guard == guard })
	if i < 0 {
		i = len(d.variants)
		d.variants = append(d.variants, &variant{guard: guard, lines: lines})
	}
	v := d.variants[i]
	for j := range e.old {
		if v.edited[line+j] {
			return fmt.Errorf("%s: two edits change the same line:\n%s", e.in, lines[line+j])
		}
		if v.edited == nil {
			v.edited = map[int]bool{}
		}
		v.edited[line+j], v.lines[line+j] = true, ""
	}
	v.lines[line] = strings.Join(e.new, "\n")
	return nil
}

var (
	errNotFound = errors.New("the old text is not found")
	errTwice    = errors.New("the old text is found more than once")
)

// find returns the index at which old occurs in lines. It must occur exactly once. White space
// around a line is ignored.
func find(lines, old []string) (line int, err error) {
	line, err = -1, errNotFound
	same := func(a, b string) bool { return strings.TrimSpace(a) == strings.TrimSpace(b) }
	for i := 0; i+len(old) <= len(lines); i++ {
		if !slices.EqualFunc(lines[i:i+len(old)], old, same) {
			continue
		}
		if line >= 0 {
			return 0, errTwice
		}
		line, err = i, nil
	}
	return line, err
}

// findFragment returns the index of the only line that contains the one old line as a fragment, and
// the text of that line with the fragment replaced. White space around the fragment is ignored.
func findFragment(lines []string, e edit) (line int, changed []string, err error) {
	old := strings.TrimSpace(e.old[0])
	line = slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, old) })
	switch {
	case old == "" || line < 0:
		return 0, nil, errNotFound
	case strings.Count(strings.Join(lines, "\n"), old) > 1:
		return 0, nil, errTwice
	}
	replacement := strings.TrimSpace(strings.Join(e.new, "\n"))
	return line, []string{strings.Replace(lines[line], old, replacement, 1)}, nil
}
