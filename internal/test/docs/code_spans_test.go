package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// declarationsOfAll holds the names that the Go files of the repository declare.
type declarationsOfAll struct {
	packages map[string]map[string]bool // exported names of the packages that users import, by the package's name
	members  map[string]map[string]bool // fields and methods of the types of that name: see addMember
	// names of the types that types of that name embed; with a dot, of another package
	embeds map[string][]string
	fields map[string][]string // names of the types of fields of that name
	tests  map[string]bool     // functions of tests
}

func readDeclarations(t *testing.T) *declarationsOfAll {
	t.Helper()
	all := &declarationsOfAll{make(map[string]map[string]bool), make(map[string]map[string]bool),
		make(map[string][]string), make(map[string][]string), make(map[string]bool)}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin"):
			return fs.SkipDir
		case filepath.Ext(path) != ".go":
			return nil
		}
		text, err := textOf(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all.add(path, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (all *declarationsOfAll) add(path string, f *ast.File) {
	public := !strings.Contains("/"+path, "/internal/") && !strings.HasSuffix(path, "_test.go")
	name := func(id *ast.Ident) {
		if public && id.IsExported() {
			put(all.packages, f.Name.Name, id.Name)
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			switch {
			case d.Recv != nil:
				all.addMember(public, receiver(d.Recv.List[0].Type), d.Name.Name)
			case strings.HasSuffix(path, "_test.go"):
				all.tests[d.Name.Name] = true
			default:
				name(d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					name(spec.Name)
					all.addType(public, spec)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						name(id)
					}
				}
			}
		}
	}
}

func (all *declarationsOfAll) addType(public bool, spec *ast.TypeSpec) {
	all.addMember(public, spec.Name.Name, "")
	var fields *ast.FieldList
	switch typ := spec.Type.(type) {
	case *ast.StructType:
		fields = typ.Fields
	case *ast.InterfaceType:
		fields = typ.Methods
	default:
		all.addEmbedded(public, spec.Name.Name, typ)
		return
	}
	for _, field := range fields.List {
		for _, id := range field.Names {
			all.addMember(public, spec.Name.Name, id.Name)
			all.fields[id.Name] = append(all.fields[id.Name], strings.TrimPrefix(embedded(field.Type), "."))
		}
		if len(field.Names) == 0 {
			all.addMember(public, spec.Name.Name, strings.TrimPrefix(embedded(field.Type), "."))
			all.addEmbedded(public, spec.Name.Name, field.Type)
		}
	}
}

// addMember adds a field or method to a type. Those of public packages are in a set of their own,
// and all are in the set whose name begins with a dot.
func (all *declarationsOfAll) addMember(public bool, typ, member string) {
	put(all.members, "."+typ, member)
	if public {
		put(all.members, typ, member)
	}
}

func (all *declarationsOfAll) addEmbedded(public bool, typ string, e ast.Expr) {
	all.embeds["."+typ] = append(all.embeds["."+typ], embedded(e))
	if public {
		all.embeds[typ] = append(all.embeds[typ], embedded(e))
	}
}

// embedded returns the name of an embedded or underlying type, after a dot if it is of another
// package.
func embedded(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return "." + e.Sel.Name
	case *ast.StarExpr:
		return embedded(e.X)
	case *ast.IndexExpr:
		return embedded(e.X)
	case *ast.IndexListExpr:
		return embedded(e.X)
	}
	return receiver(e)
}

func put(sets map[string]map[string]bool, set, name string) {
	if sets[set] == nil {
		sets[set] = make(map[string]bool)
	}
	sets[set][name] = true
}

// hasMember reports whether some type of that name, or a field's type, has a field or a method.
func (all *declarationsOfAll) hasMember(name, member string) bool {
	return all.typeHas(name, member, 0) || slices.ContainsFunc(all.fields[strings.TrimPrefix(name, ".")],
		func(typ string) bool { return all.typeHas(typ, member, 0) })
}

// typeHas also looks at the types that a type embeds. One that is not declared here may have any
// member.
func (all *declarationsOfAll) typeHas(typ, member string, depth int) bool {
	external := strings.HasPrefix(typ, ".")
	if all.members[typ] == nil && !external {
		typ = "." + typ
	}
	if all.members[typ] == nil {
		return external
	}
	return all.members[typ][member] || depth < 5 &&
		slices.ContainsFunc(all.embeds[typ], func(other string) bool { return all.typeHas(other, member, depth+1) })
}

var (
	selector = regexp.MustCompile(`^(?:([a-z]\w*)\.)?([A-Z]\w*)(?:\.([A-Z]\w*))?(?:\(.*\)|\{.*\})?$`)
	ofTests  = regexp.MustCompile(`^(?:Test|Example|Benchmark|Fuzz)(?:[A-Z]\w*|_\w+)$`)
	ownPaths = regexp.MustCompile(
		`^(?:\./)?((?:internal|scripts|tools|docs|examples|canal|consistency|lock|bloom|meter|cmd|torture|bench)/[\w./-]*\w)$`)
)

// wrong returns what a code span names that does not exist: a path of the repository, a test, an
// exported name of its packages, or a field or method of its types.
func (all *declarationsOfAll) wrong(span string) string {
	if m := ownPaths.FindStringSubmatch(span); m != nil {
		path, name, ok := strings.Cut(m[1], ".")
		if _, err := os.Stat(m[1]); err == nil {
			return ""
		}
		if ok && all.packages[filepath.Base(path)][name] { // canal/event.Batch
			return ""
		}
		return "there is no " + m[1]
	}
	if ofTests.MatchString(span) && !all.tests[span] {
		return "there is no test " + span
	}
	m := selector.FindStringSubmatch(span)
	if m == nil {
		return ""
	}
	pkg, typ, member := m[1], m[2], m[3]
	set := typ
	if pkg == "" {
		set = "." + typ // may also be a type of an internal package
	}
	switch {
	case pkg != "" && all.packages[pkg] == nil: // of another library, or a variable
		return ""
	case pkg != "" && !all.packages[pkg][typ]:
		return "package " + pkg + " has no " + typ
	case member != "" && (all.members["."+typ] != nil || all.fields[typ] != nil) && !all.hasMember(set, member):
		return typ + " has no " + member
	}
	return ""
}

// TestCodeSpans checks that the paths, tests, exported names, fields and methods in code spans of
// the documentation exist.
func TestCodeSpans(t *testing.T) {
	all, checked := readDeclarations(t), 0
	for _, page := range append(pages(t), "CONTRIBUTING.md") {
		text, err := textOf(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range spans.FindAllString(code.ReplaceAllString(text, ""), -1) {
			checked++
			if flaw := all.wrong(strings.Trim(span, "`")); flaw != "" {
				t.Errorf("%s: %s: %s", page, span, flaw)
			}
		}
	}
	if checked < 1000 {
		t.Errorf("only %d code spans", checked)
	}
}

// TestWrongCodeSpans checks what TestCodeSpans reports.
func TestWrongCodeSpans(t *testing.T) {
	all := readDeclarations(t)
	for span, want := range map[string]string{
		"Loader.Get": "", "cacheaside.Options": "", "Options.MaxLoads": "", "canal/event.Batch": "", "internal/lease": "",
		"scripts/test.sh": "", "redis.Options": "", "TestNoStaleJoin": "", "lock.Lease.Release()": "", "Bus.Gaps": "", "http.Handler": "",
		"Batch.Releases":            "Batch has no Releases",
		"cacheaside.NoRedis":        "package cacheaside has no NoRedis",
		"Options.MaxLoad":           "Options has no MaxLoad",
		"cacheaside.Hold.Release()": "Hold has no Release",
		"internal/leases":           "there is no internal/leases",
		"canal/event.Batches":       "there is no canal/event.Batches",
		"TestNoStaleJoins":          "there is no test TestNoStaleJoins",
	} {
		if flaw := all.wrong(span); flaw != want {
			t.Errorf("%s: %q, want %q", span, flaw, want)
		}
	}
}
