// Layers checks that the files of the root package refer to each other in one direction: down the
// list root.txt. The types Cache and Loader and their fields are an exception, because many files
// contain methods of these types.
//
// With -list DIR it prints the references between the files of a package.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// list has the files of the root from the top down. Files that stand on one line are one layer.
const list = "tools/layers/root.txt"

func main() {
	dir := flag.String("list", "", "print the references between the files of the package in this folder")
	flag.Parse()
	if err := run(*dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string) error {
	if dir != "" {
		s, err := load(dir)
		if err != nil {
			return err
		}
		for _, r := range sorted(s.references()) {
			fmt.Println(r.from, r.to, r.name)
		}
		return nil
	}
	wrong, err := check()
	if err == nil && len(wrong) > 0 {
		err = errors.New(strings.Join(wrong, "\n"))
	}
	return err
}

// check returns what is wrong with the root package.
func check() (wrong []string, err error) {
	layers, err := readLayers(list)
	if err != nil {
		return nil, err
	}
	s, err := load(".")
	if err != nil {
		return nil, err
	}
	for _, f := range s.files {
		if _, ok := layers[f]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s: %s is not in it", list, f))
		}
	}
	for f := range layers {
		if !slices.Contains(s.files, f) {
			wrong = append(wrong, fmt.Sprintf("%s: there is no %s", list, f))
		}
	}
	for _, r := range sorted(s.references()) {
		if layers[r.from] > layers[r.to] {
			wrong = append(wrong, fmt.Sprintf("%s refers up to %s: %s", r.from, r.to, r.name))
		}
	}
	return wrong, nil
}

func sorted(refs map[reference]bool) []reference {
	return slices.SortedFunc(maps.Keys(refs), func(a, b reference) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.name, b.name))
	})
}

func readLayers(list string) (map[string]int, error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, err
	}
	layers, n := make(map[string]int), 0
	for line := range strings.Lines(string(text)) {
		for file := range strings.FieldsSeq(line) {
			layers[file] = n
		}
		n++
	}
	return layers, nil
}

// reference is a use of a name in one file that another declares.
type reference struct{ from, to, name string }

// sources are a package, tests aside.
type sources struct {
	files []string
	fset  *token.FileSet
	info  *types.Info
	pkg   *types.Package
}

// load reads and checks the package in dir.
func load(dir string) (*sources, error) {
	s := &sources{fset: token.NewFileSet(), info: &types.Info{Uses: make(map[*ast.Ident]types.Object)}}
	built, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	s.files = built.GoFiles
	var parsed []*ast.File
	for _, name := range s.files {
		f, err := parser.ParseFile(s.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, f)
	}
	exports, err := exportData(dir)
	if err != nil {
		return nil, err
	}
	config := types.Config{Importer: importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	s.pkg, err = config.Check("root", s.fset, parsed, s.info)
	return s, err
}

// references are those between the files.
func (s *sources) references() map[reference]bool {
	refs := make(map[reference]bool)
	for id, o := range s.info.Uses {
		o = origin(o)
		if o.Pkg() != s.pkg || !o.Pos().IsValid() || shared(o, s.pkg) {
			continue
		}
		from, to := filepath.Base(s.fset.Position(id.Pos()).Filename), filepath.Base(s.fset.Position(o.Pos()).Filename)
		if from != to {
			refs[reference{from, to, o.Name()}] = true
		}
	}
	return refs
}

// exportData returns the file with the compiler's export data for each package that dir imports.
func exportData(dir string) (map[string]string, error) {
	cmd := exec.CommandContext(context.Background(), "go", "list", "-trimpath", "-race", "-export", "-deps", "-f",
		"{{.ImportPath}} {{.Export}}", ".")
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if path, file, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			exports[path] = file
		}
	}
	return exports, nil
}

// origin is the declaration of a method or field of a generic type.
func origin(o types.Object) types.Object {
	switch o := o.(type) {
	case *types.Func:
		return o.Origin()
	case *types.Var:
		return o.Origin()
	}
	return o
}

// shared reports whether all files may refer to o.
func shared(o types.Object, pkg *types.Package) bool {
	if t, ok := o.(*types.TypeName); ok && o.Parent() != pkg.Scope() {
		_, param := t.Type().(*types.TypeParam)
		return param
	}
	for _, name := range []string{"Cache", "Loader"} {
		object := pkg.Scope().Lookup(name)
		if object != nil && (o == object || isField(o, object.Type(), pkg)) {
			return true
		}
	}
	return false
}

// isField reports whether o is a field of a struct, of an unnamed struct in it, or of a struct that
// it embeds.
func isField(o types.Object, typ types.Type, pkg *types.Package) bool {
	s, ok := typ.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		named, _ := f.Type().(*types.Named)
		samePackage := named != nil && named.Obj().Pkg() == pkg
		_, unnamed := f.Type().(*types.Struct)
		if f == o || (unnamed || f.Embedded() && samePackage) && isField(o, f.Type(), pkg) {
			return true
		}
	}
	return false
}
