// Layers checks that the files of the root package refer to each other in one direction only: down
// the list in scripts/layers.txt. All files may refer to the types Cache and Loader and to their
// fields, for many have methods of these. With -list it prints all references instead.
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
	refs, files, err := references(".")
	if err != nil {
		return err
	}
	var wrong []string
	for _, f := range files {
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

// references are those between the files of the package in dir, tests aside.
func references(dir string) (refs map[reference]bool, files []string, err error) {
	fset := token.NewFileSet()
	var parsed []*ast.File
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		parsed, files = append(parsed, f), append(files, filepath.Base(name))
	}
	exports, err := exportData(dir)
	if err != nil {
		return nil, nil, err
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection)}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	pkg, err := config.Check("root", fset, parsed, info)
	if err != nil {
		return nil, nil, err
	}
	refs = make(map[reference]bool)
	for id, o := range info.Uses {
		o = origin(o)
		if o.Pkg() != pkg || !o.Pos().IsValid() || shared(o, pkg) {
			continue
		}
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(o.Pos()).Filename)
		if from != to {
			refs[reference{from, to, o.Name()}] = true
		}
	}
	return refs, files, nil
}

// exportData is where the compiler has put what it knows of the packages that dir imports.
func exportData(dir string) (map[string]string, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", dir)
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

// isField tells whether o is a field of a struct, or of one of this package that it embeds.
func isField(o types.Object, of types.Type, pkg *types.Package) bool {
	s, ok := of.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		named, _ := f.Type().(*types.Named)
		own := named != nil && named.Obj().Pkg() == pkg
		if f == o || f.Embedded() && own && isField(o, f.Type(), pkg) {
			return true
		}
	}
	return false
}
