// Layers checks that the files of the root package refer to each other in one direction only: down
// the list in scripts/layers.txt. All files may refer to the types Cache and Loader and to their
// fields, for many have methods of these. It also checks that the package stays small. With -list
// it prints all references instead.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
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

// list is where the layers are listed, from the top down. Files of one line are one layer.
const list = "scripts/layers.txt"

func main() {
	all := flag.Bool("list", false, "print all references between files")
	flag.Parse()
	if err := run(*all); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(all bool) error {
	layers, err := readLayers()
	if err != nil {
		return err
	}
	root, err := load(".")
	if err != nil {
		return err
	}
	refs := root.references()
	wrong := root.sizes()
	for _, f := range root.files {
		if _, ok := layers[f]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s: not in %s", f, list))
		}
	}
	for _, r := range slices.SortedFunc(maps.Keys(refs), func(a, b reference) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.name, b.name))
	}) {
		if all {
			fmt.Println(r.from, r.to, r.name)
		} else if layers[r.from] > layers[r.to] {
			wrong = append(wrong, fmt.Sprintf("%s refers up to %s: %s", r.from, r.to, r.name))
		}
	}
	if len(wrong) > 0 && !all {
		return fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return nil
}

func readLayers() (map[string]int, error) {
	f, err := os.Open(list)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	layers, n := make(map[string]int), 0
	for lines := bufio.NewScanner(f); lines.Scan(); n++ {
		for _, file := range strings.Fields(lines.Text()) {
			layers[file] = n
		}
	}
	return layers, nil
}

// reference is a use of a name in one file that another declares.
type reference struct{ from, to, name string }

// sources are a package, tests aside.
type sources struct {
	files []string
	lines int
	fset  *token.FileSet
	info  *types.Info
	pkg   *types.Package
}

// load reads and checks the package in dir.
func load(dir string) (*sources, error) {
	s := &sources{fset: token.NewFileSet(), info: &types.Info{Uses: make(map[*ast.Ident]types.Object)}}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var parsed []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(s.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed, s.files = append(parsed, f), append(s.files, filepath.Base(name))
		s.lines += s.fset.File(f.Pos()).LineCount()
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

// sizes tells what is too large.
func (s *sources) sizes() (wrong []string) {
	loader := s.pkg.Scope().Lookup("Loader").Type().(*types.Named)
	for _, of := range []struct {
		what    string
		n, most int
	}{
		{"files", len(s.files), 20},
		{"lines", s.lines, 3000},
		{"fields of Loader", loader.Underlying().(*types.Struct).NumFields(), 15},
		{"methods of Loader", loader.NumMethods(), 30},
	} {
		if of.n > of.most {
			wrong = append(wrong, fmt.Sprintf("the root package has %d %s: at most %d", of.n, of.what, of.most))
		}
	}
	return wrong
}

// exportData is where the compiler has put what it knows of the packages that dir imports.
func exportData(dir string) (map[string]string, error) {
	cmd := exec.Command("go", "list", "-trimpath", "-race", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if path, file, ok := strings.Cut(lines.Text(), " "); ok {
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

// shared tells whether all files may refer to o.
func shared(o types.Object, pkg *types.Package) bool {
	if t, ok := o.(*types.TypeName); ok && o.Parent() != pkg.Scope() {
		_, param := t.Type().(*types.TypeParam)
		return param
	}
	for _, name := range []string{"Cache", "Loader"} {
		of := pkg.Scope().Lookup(name)
		if of != nil && (o == of || isField(o, of.Type(), pkg)) {
			return true
		}
	}
	return false
}

// isField tells whether o is a field of a struct, or of one in it that has no name, or that it
// embeds.
func isField(o types.Object, of types.Type, pkg *types.Package) bool {
	s, ok := of.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		named, _ := f.Type().(*types.Named)
		own := named != nil && named.Obj().Pkg() == pkg
		_, unnamed := f.Type().(*types.Struct)
		if f == o || (unnamed || f.Embedded() && own) && isField(o, f.Type(), pkg) {
			return true
		}
	}
	return false
}
