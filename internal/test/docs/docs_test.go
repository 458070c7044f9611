package docs

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// notHere are pages that a link may lead to before they are there.
var notHere = []string{}

// pages returns README.md, SECURITY.md and all pages of docs, except logs.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "SECURITY.md"}
	err := filepath.WalkDir("docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".md" {
			all = append(all, path)
		}
		return err
	})
	if err != nil || len(all) < 6 {
		t.Fatal(all, err)
	}
	return all
}

var (
	code     = regexp.MustCompile("(?s)```.*?```")
	spans    = regexp.MustCompile("`[^`\n]*`")
	links    = regexp.MustCompile(`\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)`)
	named    = regexp.MustCompile("`((?:Test|Example|Benchmark|Fuzz)[A-Za-z0-9_]*)`")
	heading  = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	notInAny = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// textOf returns the content of a file. It reads each file once.
func textOf(path string) (string, error) {
	if known, ok := texts.Load(path); ok {
		return known.(string), nil
	}
	b, err := os.ReadFile(path)
	if err == nil {
		texts.Store(path, string(b))
	}
	return string(b), err
}

var texts, headings sync.Map

// anchors returns the names of the headings of a page in links, as GitHub makes them.
func anchors(text string) (all []string) {
	if known, ok := headings.Load(text); ok {
		return known.([]string)
	}
	defer func() { headings.Store(text, all) }()
	for _, m := range heading.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(notInAny.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// flaws returns the wrong links of a page, whose path is relative to here: links to missing files
// and headings, and to files without the test that the text of the link names.
func flaws(page, text string) (all []string, checked int) {
	prose := spans.ReplaceAllStringFunc(code.ReplaceAllString(text, ""), func(span string) string {
		if strings.Contains(span, "](") { // code, as of a generic function
			return ""
		}
		return span
	})
	for _, m := range links.FindAllStringSubmatch(prose, -1) {
		label, target := m[1], m[2]
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		checked++
		path, anchor, _ := strings.Cut(target, "#")
		file := page
		if path != "" {
			file = filepath.Join(filepath.Dir(page), path)
		}
		if slices.Contains(notHere, filepath.ToSlash(file)) {
			continue
		}
		info, err := os.Stat(file)
		if err != nil && file != page {
			all = append(all, fmt.Sprintf("%s: [%s](%s): there is no %s", page, label, target, file))
			continue
		}
		if anchor != "" && filepath.Ext(file) == ".md" {
			to := text
			if file != page {
				if to, err = textOf(file); err != nil {
					all = append(all, err.Error())
					continue
				}
			}
			if !slices.Contains(anchors(to), anchor) {
				all = append(all, fmt.Sprintf("%s: [%s](%s): no such heading", page, label, target))
			}
		}
		for _, name := range named.FindAllStringSubmatch(label, -1) {
			if !has(file, info, "func "+name[1]+"(") {
				all = append(all, fmt.Sprintf("%s: [%s](%s): there is no %s", page, label, target, name[1]))
			}
		}
	}
	return all, checked
}

// has reports whether a file, or a file of a folder, contains text.
func has(path string, info fs.FileInfo, text string) bool {
	files := []string{path}
	if info.IsDir() {
		files, _ = filepath.Glob(filepath.Join(path, "*.go"))
	}
	return slices.ContainsFunc(files, func(file string) bool {
		is, err := textOf(file)
		return err == nil && strings.Contains(is, text)
	})
}

// Every link in the documentation leads to something, and every test that one names is where it
// leads to.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		text, err := textOf(page)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := flaws(page, text)
		for _, flaw := range all {
			t.Error(flaw)
		}
	}
}

// What the test of links would say.
func TestLinksThatLeadNowhere(t *testing.T) {
	const page = "docs/x.md"
	for text, want := range map[string]int{
		"[a](../loader.go) [b](design.md) [c](#here)\n# Here": 0,
		"[a](../loaders.go)": 1,
		"[a](loader.go)":     1,
		"[`TestLinksLeadSomewhere`](../internal/test/docs/docs_test.go)":        0,
		"[`TestLinksLeadSomewhere`](../loader.go)":                              1,
		"[`TestLinksLeadNowhere`, `TestX`](../internal/test/docs/docs_test.go)": 2,
		"[`TestKilled`](../consistency)":                                        0,
		"[`TestKill`](../consistency)":                                          1,
		"[a](#there)\n# Here":                                                   1,
		"[a](../README.md#status) [b](../README.md#states)":                     1,
		"[a](https://nowhere.example/x)":                                        0,
		"```go\nm[string](x)\n```":                                              0,
		"`NewT[K](c)` [`TestNo`](../internal/test/docs/docs_test.go) `m[x](y)`": 1,
		"[a](guides/metrics.md)":                                                0,
	} {
		if all, checked := flaws(page, text); len(all) != want || want > 0 && checked == 0 {
			t.Errorf("%q: %q, want %d", text, all, want)
		}
	}
}

// eachStruct calls found for the structs in those files of a folder whose text is wanted.
func eachStruct(
	t *testing.T, folder string, wanted func(text string) bool, found func(file, name string, fields []string),
) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := textOf(file)
		if err != nil {
			t.Fatal(err)
		}
		if !wanted(text) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := s.Type.(*ast.StructType); ok {
				var fields []string
				for _, field := range st.Fields.List {
					for _, name := range field.Names {
						fields = append(fields, name.Name)
					}
				}
				found(file, s.Name.Name, fields)
			}
			return true
		})
	}
}

// structs are those whose fields the documentation names.
const structs = "Stats|BusStats|RelayStats|Options|LoaderOptions|RelayOptions|MaintainOptions|RebuildOptions|AcquireOptions|State"

// fields are those of these structs of the packages that users know, by the struct's name: Stats
// and Options are several.
func fields(t *testing.T) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	declared := func(text string) bool {
		return slices.ContainsFunc(strings.Split(structs+"|Depth", "|"), func(name string) bool { return strings.Contains(text, name+" struct") })
	}
	for _, folder := range []string{".", "consistency", "consistency/sqloutbox", "bloom", "consistency/watermillqueue",
		"consistency/gormwrites", "canal", "canal/parking", "canal/mysqlbinlog", "canal/pglogical",
		"lock", "lock/mysqllock", "lock/pglock", "lock/zklock", "meter", "otelcacheaside"} {
		eachStruct(t, folder, declared, func(_, name string, fields []string) { all[name] = append(all[name], fields...) })
	}
	return all
}

// Every field of options and counts that the documentation names exists.
func TestFieldsThatAreNamed(t *testing.T) {
	known := fields(t)
	mention := regexp.MustCompile("`(?:[a-z]+\\.)?(" + structs + ")((?:\\.[A-Z][A-Za-z]+)+)[`: ]")
	found := 0
	for _, page := range pages(t) {
		text, err := textOf(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			found++
			typ := m[1]
			for _, name := range strings.Split(m[2], ".")[1:] {
				if !slices.Contains(known[typ], name) {
					t.Errorf("%s: %s%s: %s has no %s", page, m[1], m[2], typ, name)
				}
				typ = map[string]string{"Bus": "BusStats", "Relay": "RelayStats", "Rebuild": "RebuildOptions", "Depth": "Depth"}[name]
			}
		}
	}
	if found == 0 {
		t.Error("none is named")
	}
}

// TestGuarantees: each promise of docs/guarantees.md has tests, a figure and limits, and one of its
// tests fails without a guard.
func TestGuarantees(t *testing.T) {
	lists, err := filepath.Glob("tools/mutant/guards/*.txt")
	if err != nil || len(lists) == 0 {
		t.Fatal(lists, err)
	}
	var guards strings.Builder
	for _, list := range lists {
		text, err := textOf(list)
		if err != nil {
			t.Fatal(err)
		}
		guards.WriteString(text)
	}
	page, err := textOf("docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	promises := 0
	for _, section := range strings.Split(page, "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		if !strings.Contains("123456789", title[:1]) {
			continue
		}
		promises++
		for _, part := range []string{"- **Tests:**", "- **Figure:**", "- **Limits:**"} {
			if !strings.Contains(section, part) {
				t.Errorf("%q has no %q", title, part)
			}
		}
		if !slices.ContainsFunc(named.FindAllStringSubmatch(section, -1), func(m []string) bool {
			return regexp.MustCompile(`(?m)^test .*\b` + m[1] + `\b`).MatchString(guards.String())
		}) {
			t.Errorf("%q has no test that a guard names", title)
		}
	}
	if promises < 12 {
		t.Errorf("%d promises", promises)
	}
}

// optionsOf are the structs that docs/options.md lists, by their folders, and how it names each.
var optionsOf = map[string]map[string]string{
	".":                          {"Options": "Options", "LoaderOptions": "LoaderOptions"},
	"consistency":                {"Options": "consistency.Options", "RelayOptions": "RelayOptions"},
	"consistency/sqloutbox":      {"Options": "sqloutbox.Options"},
	"consistency/gormwrites":     {"Options": "gormwrites.Options"},
	"consistency/watermillqueue": {"Options": "watermillqueue.Options"},
	"lock":                       {"Options": "lock.Options", "AcquireOptions": "lock.AcquireOptions"},
	"lock/mysqllock":             {"Options": "mysqllock.Options"},
	"lock/pglock":                {"Options": "pglock.Options"},
	"lock/zklock":                {"Options": "zklock.Options"},
	"bloom":                      {"Options": "bloom.Options", "MaintainOptions": "MaintainOptions", "RebuildOptions": "RebuildOptions"},
	"canal":                      {"Options": "canal.Options", "SQLCheckpointOptions": "SQLCheckpointOptions"},
	"canal/parking":              {"TableOptions": "TableOptions"},
	"canal/mysqlbinlog":          {"Options": "mysqlbinlog.Options"},
	"canal/pglogical":            {"Options": "pglogical.Options", "OutboxOptions": "OutboxOptions"},
	"meter":                      {"Options": "meter.Options"},
	"otelcacheaside":             {"Options": "otelcacheaside.Options"},
}

// TestFieldsOfOptions: docs/options.md has each field of each struct of options, once, and nothing
// else.
func TestFieldsOfOptions(t *testing.T) {
	want := make(map[string]int)
	for folder, structs := range optionsOf {
		hasOptions := func(text string) bool { return strings.Contains(text, "Options struct") }
		eachStruct(t, folder, hasOptions, func(file, name string, fields []string) {
			if strings.HasSuffix(file, "_test.go") || !strings.HasSuffix(name, "Options") || !ast.IsExported(name) {
				return
			}
			if structs[name] == "" {
				t.Errorf("%s: %s is not among those that docs/options.md lists", file, name)
			}
			for _, field := range fields {
				if ast.IsExported(field) {
					want[structs[name]+"."+field]++
				}
			}
		})
	}
	page, err := textOf("docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\|").FindAllStringSubmatch(page, -1) {
		want[m[1]]--
	}
	for name, n := range want {
		if n != 0 {
			t.Errorf("docs/options.md: %s is missing, or there too often, or no option (%d)", name, n)
		}
	}
}

var (
	blocks  = regexp.MustCompile("(?ms)^(?:<!-- ([^ ]+): ([^\n]+) -->\n)?```go\n(.*?)\n```$")
	snippet = "// snippet: "
)

// region returns the part of a file between the comment that names it and the comment that ends it.
func region(text, name string) (string, bool) {
	_, after, ok := strings.Cut(text, snippet+name+"\n")
	part, _, ended := strings.Cut(after, "\n// end\n")
	return strings.Trim(part, "\n"), ok && ended
}

// regionsOf lists the pages that show regions of compiled files, with these files. Other snippets
// of docs/guides/lists.md are compiled by TestReadmeCompiles.
var regionsOf = map[string][]string{
	"docs/migration.md": {"example_migration_test.go", "example_migration_others_test.go", "bench/migration_test.go",
		"bench/migration_gozero_test.go", "bench/migration_others_test.go"},
	"docs/guides/lists.md":            {"example_lists_test.go"},
	"docs/guides/service-postgres.md": append(partsOfService, "examples/service/postgres.go"),
	"docs/guides/service-mysql.md":    append(partsOfService, "examples/service/mysql.go"),
}

var partsOfService = slices.Clip([]string{"examples/service/main.go", "examples/service/wiring.go",
	"examples/service/users.go", "examples/service/http.go", "examples/service/reports.go"})

var update = flag.Bool("update", false, "write the compiled snippets into the pages that show them")

// The pages show exactly the compiled snippets, and all of them. With the flag -update the test
// writes them there.
func TestSnippetsAreCompiled(t *testing.T) {
	for page, files := range regionsOf {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		shown := make(map[string]bool)
		for _, m := range blocks.FindAllStringSubmatch(string(b), -1) {
			path, name, shows := m[1], m[2], m[3]
			if path == "" {
				if page == "docs/migration.md" {
					t.Errorf("%s: a snippet of no file:\n%s", page, shows)
				}
				continue
			}
			file := filepath.Join(filepath.Dir(page), path)
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			compiled, ok := region(string(source), name)
			if ok && *update {
				b = bytes.Replace(b, []byte(m[0]), []byte(strings.Replace(m[0], shows, compiled, 1)), 1)
			} else if !ok || compiled != shows {
				t.Errorf("%s: the snippet %q is not as in %s (go test ./internal/test/docs -update):\n%s\n-- there:\n%s", page, name, file, shows, compiled)
			}
			shown[file+name] = true
		}
		if *update {
			if err := os.WriteFile(page, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			names := strings.Split(string(source), snippet)[1:]
			for _, s := range names {
				if name, _, _ := strings.Cut(s, "\n"); !shown[file+name] {
					t.Errorf("%s does not show %q of %s", page, name, file)
				}
			}
			if len(names) == 0 {
				t.Errorf("%s has no snippets", file)
			}
		}
	}
}

// The functions that docs/design.md names are in the files that it names for them: "`Type.method`
// and `function` in path/file.go".
func TestLives(t *testing.T) {
	design, err := textOf("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("((?:`[A-Za-z.]+`(?:, | and )?)+) in ([a-z_/]+\\.go)").FindAllStringSubmatch(design, -1)
	if len(named) < 30 {
		t.Errorf("only %d places are named", len(named))
	}
	for _, place := range named {
		source, err := textOf(place[2])
		if err != nil {
			t.Error(err)
		}
		for name := range strings.FieldsSeq(strings.NewReplacer("`", " ", ",", " ", " and ", " ").Replace(place[1])) {
			declared := `(?m)^func ` + name + `[(\[]`
			if typ, method, ok := strings.Cut(name, "."); ok {
				declared = `(?m)^func \(\w+ \*` + typ + `(\[.*\])?\) ` + method + `\(`
			}
			if !regexp.MustCompile(declared).MatchString(source) {
				t.Errorf("docs/design.md: there is no %s in %s", name, place[2])
			}
		}
	}
}

// TestReadmeNamesTheCommands: a newcomer finds the two commands that show the library, and test it.
func TestReadmeNamesTheCommands(t *testing.T) {
	readme, err := textOf("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"`go run ./examples/quickstart`", "`make test`"} {
		if !strings.Contains(readme, command) {
			t.Errorf("README.md does not name %s", command)
		}
	}
}
