package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// writeOverlay writes patched copies of the files and the overlay, and returns the overlay's path.
func writeOverlay(root, work string, sources map[string]*source) (string, error) {
	replace := map[string]string{}
	put := func(path, text string) error {
		copied := filepath.Join(work, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		replace[path] = copied
		return os.WriteFile(copied, []byte(text), 0o644)
	}
	packages := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		s := sources[name]
		text, err := s.patched()
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if err := put(s.path, text); err != nil {
			return "", err
		}
		packages[filepath.Dir(s.path)] = s.file.Name.Name
	}
	for folder, name := range packages {
		if err := put(filepath.Join(folder, "zz_chosen_guard.go"), fmt.Sprintf(chosenFile, name)); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(work, "overlay.json")
	return path, os.WriteFile(path, b, 0o644)
}

// chosenFile is added to each package that has guards.
const chosenFile = `package %s

import guardos "os"

// chosenGuard is the guard that is removed in this process.
var chosenGuard = guardos.Getenv("CACHEASIDE_MUTANT")

// guardText returns the variant for the chosen guard, or text if there is none.
func guardText(text string, variants map[string]string) string {
	if v, ok := variants[chosenGuard]; ok {
		return v
	}
	return text
}

var _ = guardText
`

// patched returns the text of the file with each variant added next to the original.
func (s *source) patched() (string, error) {
	var b strings.Builder
	offset := 0
	for _, d := range s.inOrder() {
		text, err := s.patch(d)
		if err != nil {
			return "", fmt.Errorf("%s: %w", d.name, err)
		}
		b.WriteString(s.text[offset:d.from])
		b.WriteString(text)
		offset = d.to
		// The following lines get their original numbers.
		fmt.Fprintf(&b, "\n%s", s.line(d.to+1))
		if offset < len(s.text) {
			offset++ // the line's end
		}
	}
	b.WriteString(s.text[offset:])
	return s.constToVar(b.String())
}

func (s *source) inOrder() (changed []*decl) {
	for _, d := range s.decls {
		if len(d.variants) > 0 {
			changed = append(changed, d)
		}
	}
	slices.SortFunc(changed, func(a, b *decl) int { return a.from - b.from })
	return changed
}

// line returns a line directive: the next line has the number of the line at this offset.
func (s *source) line(offset int) string {
	offset = min(offset, len(s.text))
	return fmt.Sprintf("//line %s:%d\n", s.path, strings.Count(s.text[:offset], "\n")+1)
}

func (s *source) patch(d *decl) (string, error) {
	if f, ok := d.node.(*ast.FuncDecl); ok {
		return s.patchFunc(d, f)
	}
	return s.patchValue(d)
}

// patchFunc inserts each variant of the body before the body, in an if statement.
func (s *source) patchFunc(d *decl, f *ast.FuncDecl) (string, error) {
	open := s.offset(f.Body.Lbrace) + 1
	var b strings.Builder
	b.WriteString(s.text[d.from:open])
	for _, v := range d.variants {
		body, err := bodyOf(v.text())
		if err != nil {
			return "", fmt.Errorf("without %s: %w", v.guard, err)
		}
		fmt.Fprintf(&b, "\nif chosenGuard == %q {\n%s%s\n", v.guard, s.line(open), labelled(body, v.guard))
		if f.Type.Results == nil {
			b.WriteString("return\n")
		}
		b.WriteString("}")
	}
	fmt.Fprintf(&b, "\n%s%s", s.line(open), s.text[open:d.to])
	return b.String(), nil
}

// bodyOf returns the text between the braces of a function.
func bodyOf(fn string) (string, error) {
	const head = "package p\n"
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "", head+fn, 0)
	if err != nil {
		return "", err
	}
	decl, ok := f.Decls[0].(*ast.FuncDecl)
	if !ok || len(f.Decls) != 1 {
		return "", fmt.Errorf("the edited text is not one function")
	}
	from, to := set.Position(decl.Body.Lbrace).Offset+1, set.Position(decl.Body.Rbrace).Offset
	return (head + fn)[from:to], nil
}

var label = regexp.MustCompile(`(?m)^\s*([a-z]\w*):\s*$`)

// labelled returns body with the guard's name appended to its labels, because a function cannot
// have the same label twice.
func labelled(body, guard string) string {
	for _, m := range label.FindAllStringSubmatch(body, -1) {
		name := m[1]
		if name == "default" {
			continue
		}
		body = regexp.MustCompile(`\b(break|continue|goto) `+name+`\b`).ReplaceAllString(body, "${1} "+name+"_"+guard)
		body = regexp.MustCompile(`(?m)^(\s*)`+name+`:(\s*)$`).ReplaceAllString(body, "${1}"+name+"_"+guard+":${2}")
	}
	return body
}

// patchValue replaces each string literal that differs without a guard by a call of guardText.
func (s *source) patchValue(d *decl) (string, error) {
	texts := func(n string) (lits []string, ranges [][2]int, err error) {
		const head = "package p\nvar "
		set := token.NewFileSet()
		spec := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(n), "var "), "const ")
		f, err := parser.ParseFile(set, "", head+spec, 0)
		if err != nil {
			return nil, nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				lits = append(lits, l.Value)
				from := set.Position(l.Pos()).Offset - len(head)
				ranges = append(ranges, [2]int{from, from + len(l.Value)})
			}
			return true
		})
		return lits, ranges, nil
	}
	whole := s.text[d.from:d.to]
	spec := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(whole), "var "), "const ")
	before, _, _ := strings.Cut(whole, spec)
	lits, ranges, err := texts(whole)
	if err != nil {
		return "", err
	}
	changed := make([]map[string]string, len(lits))
	for _, v := range d.variants {
		others, _, err := texts(v.text())
		if err != nil {
			return "", fmt.Errorf("without %s: %w", v.guard, err)
		}
		if len(others) != len(lits) {
			return "", fmt.Errorf("without %s: only string literals of a variable or constant can differ", v.guard)
		}
		for i := range lits {
			if lits[i] != others[i] {
				if changed[i] == nil {
					changed[i] = map[string]string{}
				}
				changed[i][v.guard] = others[i]
			}
		}
	}
	for i, c := range slices.Backward(changed) {
		if c == nil {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "guardText(%s, map[string]string{", lits[i])
		for _, name := range slices.Sorted(maps.Keys(c)) {
			fmt.Fprintf(&b, "%q: %s, ", name, c[name])
		}
		b.WriteString("})")
		spec = spec[:ranges[i][0]] + b.String() + spec[ranges[i][1]:]
	}
	return before + spec, nil
}

// constToVar turns constants that call guardText into variables.
func (s *source) constToVar(text string) (string, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "", text, 0)
	if err != nil {
		return "", err
	}
	for _, d := range slices.Backward(f.Decls) {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		from, to := set.PositionFor(g.Pos(), false).Offset, set.PositionFor(g.End(), false).Offset
		if strings.Contains(text[from:to], "guardText(") {
			text = text[:from] + "var" + text[from+len("const"):]
		}
	}
	return text, nil
}
