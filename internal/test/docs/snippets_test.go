package docs

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// known are the packages that snippets use without importing them.
var known = strings.Fields(`context database/sql errors fmt net/http slices strings testing time
	github.com/jmoiron/sqlx github.com/redis/go-redis/v9
	github.com/cacheaside/cacheaside`)

// inProgram are those that the programs and getting-started import besides.
var inProgram = strings.Fields("github.com/alicebob/miniredis/v2 modernc.org/sqlite log")

// ours are those of the library.
var ours = strings.Fields(
	"bloom canal canal/envelope canal/event canal/parking consistency consistency/pgnotify consistency/pgxtx " +
		"consistency/queuetest consistency/sqloutbox lock lock/driver lock/locktest lock/redlock meter stack")

// elsewhere lists the modules whose packages some snippets use, by a text that occurs in such a
// snippet, with the other packages that these snippets use: paths, or names and paths.
var elsewhere = map[string]struct {
	folder string
	uses   []string
}{
	"entsql.":          {"examples/dblayers", []string{"entgo.io/ent/dialect", "entsql entgo.io/ent/dialect/sql"}},
	"gorm.":            {"examples/dblayers", []string{"gorm.io/gorm", "gorm.io/driver/mysql"}},
	"pgxpool.":         {"examples/dblayers", strings.Fields("github.com/jackc/pgx/v5 github.com/jackc/pgx/v5/pgxpool github.com/jackc/pgx/v5/stdlib")},
	"schema.Table":     {"consistency/entwrites", []string{"entgo.io/ent/dialect", "entsql entgo.io/ent/dialect/sql", "entgo.io/ent/dialect/sql/schema"}},
	"gormwrites.":      {"consistency/gormwrites", []string{"gorm.io/gorm"}},
	"mysqlbinlog.":     {"canal/mysqlbinlog", nil},
	"pglogical.":       {"canal/pglogical", nil},
	"watermillsource.": {"canal/watermillsource", []string{"github.com/ThreeDotsLabs/watermill/message"}},
	"otelcacheaside.": {"otelcacheaside", []string{
		"github.com/prometheus/client_golang/prometheus/promhttp", "go.opentelemetry.io/otel",
		"go.opentelemetry.io/otel/exporters/prometheus", "go.opentelemetry.io/otel/sdk/metric",
	}},
}

// imported are the packages that a snippet may use, and the folder of the module that has them.
func imported(snippet string) (paths []string, folder string) {
	const root = "github.com/cacheaside/cacheaside/"
	paths, folder = slices.Clone(known), "."
	for _, path := range ours {
		paths = append(paths, root+path)
	}
	for name, module := range elsewhere {
		if name == "gorm." && strings.Contains(snippet, "gormwrites.") ||
			name == "entsql." && strings.Contains(snippet, "schema.Table") {
			continue // the other module has all that the snippet uses
		}
		if strings.Contains(snippet, name) {
			paths, folder = append(append(paths, root+module.folder), module.uses...), module.folder
		}
	}
	return paths, folder
}

// page holds the declarations of the snippets of a page that were read. The first snippet of a page
// declares what the others use: as declarations, or as a program whose function run has the others.
type page struct {
	declared, program string
	imports           []string
}

// isFile reports whether text is a whole file.
func isFile(text string) bool { return strings.HasPrefix(text, "package ") }

// add adds a snippet that others may use. It reports whether snippet is of this kind.
func (p *page) add(snippet string) bool {
	if strings.HasPrefix(snippet, "package main\n") {
		p.program = snippet
		return true
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+snippet, parser.SkipObjectResolution)
	if isFile(snippet) || err != nil {
		return false
	}
	for _, s := range f.Imports {
		p.imports = append(p.imports, strings.Trim(s.Path.Value, `"`))
	}
	if _, behind, ok := strings.Cut(snippet, "import (\n"); ok {
		_, snippet, _ = strings.Cut(behind, "\n)\n")
	}
	p.declared += snippet + "\n"
	return true
}

// file is a Go file with what the page has declared, and a snippet that is statements.
func (p *page) file(snippet string) (text, folder string) {
	paths, folder := imported(p.declared + p.program + snippet)
	var imports strings.Builder
	for _, path := range slices.Compact(slices.Sorted(slices.Values(append(paths, p.imports...)))) {
		if name, named, ok := strings.Cut(path, " "); ok {
			fmt.Fprintf(&imports, "import %s %q\n", name, named)
		} else if !strings.Contains(p.program, `"`+path+`"`) {
			fmt.Fprintf(&imports, "import %q\n", path)
		}
	}
	statements := "func() error {\n" + snippet + "\nreturn nil\n}"
	if p.program == "" {
		return "package snippet\n" + imports.String() + p.declared + "var _ = " + statements, folder
	}
	text = strings.Replace(p.program, "package main\n", "package main\n"+imports.String(), 1)
	end := strings.LastIndex(text, "\n\treturn nil\n")
	return text[:end] + "\n_ = " + statements + text[end:], folder
}

// TestReadmeCompiles: each Go snippet of README.md and of docs compiles, except for variables that
// nothing uses. It uses nothing but what it declares, or what the first snippet of its page does,
// and later ones that are declarations. Those of docs/migration.md and of examples are compiled
// elsewhere.
func TestReadmeCompiles(t *testing.T) {
	modules := make(map[string]*exports) // by folder
	all := 0
	for _, name := range pages(t) {
		if parts := regionsOf[filepath.ToSlash(name)]; name == filepath.Join("docs", "migration.md") ||
			len(parts) > 0 && strings.HasPrefix(parts[0], "examples/") {
			continue
		}
		text, err := textOf(name)
		if err != nil {
			t.Fatal(err)
		}
		var p page
		for _, m := range blocks.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[3], "package main\n") { // snippets before it use its names, too
				p.add(m[3])
			}
		}
		for i, m := range blocks.FindAllStringSubmatch(text, -1) {
			all++
			snippet := m[3]
			if isFile(snippet) && !strings.HasPrefix(snippet, "package main\n") { // TestSnippetsRun
				continue
			}
			statements := snippet
			if p.add(snippet) {
				statements = ""
			}
			whole, folder := p.file(statements)
			if modules[folder] == nil {
				modules[folder] = exported(t, folder)
			}
			for _, err := range modules[folder].compile(whole) {
				t.Errorf("%s, snippet %d: %v\n%s", name, i+1, err, snippet)
			}
		}
	}
	if all < 40 {
		t.Errorf("only %d snippets", all)
	}
}

// TestSnippetsRun: each program of README.md and of docs prints what it says, and each test passes.
// They need Go alone.
func TestSnippetsRun(t *testing.T) {
	programs, tests := 0, 0
	for _, name := range pages(t) {
		text, err := textOf(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range blocks.FindAllStringSubmatch(text, -1) {
			if !isFile(m[3]) {
				continue
			}
			command, file := append([]string{"run"}, asTheSuite()...), "main.go"
			if strings.HasPrefix(m[3], "package main\n") {
				programs++
			} else {
				tests++
				command, file = append([]string{"test", "-vet=off", "-count=1"}, asTheSuite()...), "snippet_test.go"
			}
			file = filepath.Join(t.TempDir(), file)
			if err := os.WriteFile(file, []byte(m[3]+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			run := exec.CommandContext(t.Context(), "go", append(command, file)...)
			var warnings strings.Builder // of the library, on a machine that is too busy
			run.Stderr = &warnings
			printed, err := run.Output()
			if err != nil {
				t.Errorf("%s: %v\n%s%s", name, err, printed, &warnings)
			}
			if _, want, ok := strings.Cut(m[3], "// Output:\n"); ok {
				want, _, _ = strings.Cut(want, "\n}")
				want = strings.ReplaceAll(want, "\t// ", "")
				if strings.TrimSpace(string(printed)) != strings.TrimSpace(want) {
					t.Errorf("%s: it prints\n%s, not\n%s", name, printed, want)
				}
			} else if command[0] == "run" {
				t.Errorf("%s: the program does not say what it prints", name)
			}
		}
	}
	if programs < 1 || tests < 2 {
		t.Errorf("%d programs, %d tests", programs, tests)
	}
}

// TestSnippetsThatAreWrong: what the test of the snippets would say.
func TestSnippetsThatAreWrong(t *testing.T) {
	module := exported(t, ".")
	var p page
	if !p.add("var (\nctx context.Context\nusers *cacheaside.Loader[int64, string]\n)") {
		t.Fatal("declarations are none")
	}
	for snippet, want := range map[string]string{
		"u, err := users.Get(ctx, 42)":                   "",
		"u, err := users.Get(ctx, \"42\")":               "cannot use",
		"u, err := others.Get(ctx, 42)":                  "undefined: others",
		"err := users.Forget(ctx, 42)":                   "Forget",
		"err := users.InvalidateAll(ctx":                 "missing",
		"var o cacheaside.LoaderOptions; o.Lifetime = 1": "Lifetime",
	} {
		text, _ := p.file(snippet)
		err := errors.Join(module.compile(text)...)
		if got := fmt.Sprint(err); (err != nil) != (want != "") || err != nil && !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", snippet, err, want)
		}
	}
}

// asTheSuite returns the flags that all tests are built with, so that the build cache is used.
func asTheSuite() []string {
	flags := []string{"-trimpath"}
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		flags = append(flags, "-race")
	}
	return flags
}

// exports are the packages that snippets can import, each read once.
type exports struct {
	files   *token.FileSet
	imports types.Importer
}

// exported are the packages that a module's packages import.
func exported(t *testing.T, folder string) *exports {
	t.Helper()
	args := append(append([]string{"list"}, asTheSuite()...), "-export", "-deps", "-f",
		"{{.ImportPath}} {{.Export}}", ".")
	all := known
	if folder == "." {
		all = append(slices.Clone(known), inProgram...)
	}
	for _, path := range ours {
		args = append(args, "github.com/cacheaside/cacheaside/"+path)
	}
	for _, module := range elsewhere {
		if module.folder == folder {
			for _, path := range module.uses {
				all = append(slices.Clone(all), path[strings.Index(path, " ")+1:])
			}
		}
	}
	args = append(args, all...)
	list := exec.CommandContext(t.Context(), "go", args...)
	list.Dir, list.Stderr = folder, os.Stderr
	if folder != "." {
		list.Env = append(os.Environ(), "GOWORK="+workspace(t, folder))
	}
	b, err := list.Output()
	if err != nil {
		t.Fatal(folder, err)
	}
	archives := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		archives[path] = file
	}
	p := &exports{files: token.NewFileSet()}
	p.imports = importer.ForCompiler(p.files, "gc", func(path string) (io.ReadCloser, error) {
		if archives[path] == "" {
			return nil, fmt.Errorf("no package %s", path)
		}
		return os.Open(archives[path])
	})
	return p
}

// workspace is a file that says that the library, in this folder, and a module of a folder in it
// are worked on together, so that the library need not be compiled once more for the module.
func workspace(t *testing.T, folder string) string {
	t.Helper()
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "go.work")
	text := fmt.Sprintf("go 1.26.0\nuse (\n%q\n%q\n)\n", root, filepath.Join(root, folder))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// compile returns what is wrong with a file.
func (p *exports) compile(text string) (all []error) {
	f, err := parser.ParseFile(p.files, "snippet.go", text, parser.SkipObjectResolution)
	if err != nil {
		return []error{err}
	}
	config := types.Config{Importer: p.imports, Error: func(err error) {
		if e, ok := errors.AsType[types.Error](err); !ok || !e.Soft { // soft: a variable or an import that nothing uses
			all = append(all, err)
		}
	}}
	_, _ = config.Check("snippet", p.files, []*ast.File{f}, nil)
	return all
}
