package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// beginnings lists the names that users begin with. Each has an Example with the name that godoc
// requires. So has each exported function, except those that are named below.
var beginnings = map[string]string{
	".": `New NewLocal NewLoader NewBatchLoader Collect After SetTTL PreferPrimary KeyOf NormalizeOf CloneOf WeightOf GroupsOf Error BatchError PanicError
		Filter Codec DownPolicy ReadOption Options LoaderOptions
		Cache.InvalidateKeys Cache.RefreshKeys Cache.InsertingKeys Cache.Hold Cache.Stats
		Loader.Get Loader.GetMany Loader.Invalidate Loader.InvalidateAll Loader.InvalidateGroup Loader.Expire Loader.ExpireGroup Loader.Refresh Loader.Warm Loader.Inserting Loader.Bypass Loader.Key Loader.AllKeys Loader.GroupKey`,
	"cacheasidetest": `New Process.Process Process.AwaitInvalidations Process.Forget Process.Cut Process.Hang Process.Join
		Redis.Settle Redis.EndTTL Redis.EndLife Redis.Empty Redis.Kill Redis.Hang Redis.Fail Redis.Restore Redis.Client Redis.Server`,
	"consistency":            "NewWriter NewRelay NewMemoryQueue Touch WriteThrough Writer.Update Writer.At Writer.Enqueue Writer.InvalidateMany",
	"consistency/entwrites":  "New Update Touches",
	"consistency/gormwrites": "New Update Touches",
	"consistency/pgnotify":   "Listen ListenWith",
	"consistency/pgxtx":      "Tx",
	"consistency/queuetest":  "Run",
	"consistency/sqloutbox":  "New Dialect.Schema",
	"lock": "NewRedis NewLocal WithOwner SetFenced Guard Segmented Locker.Do Locker.Acquire Locker.TryAcquire " +
		"NewReadWrite NewSemaphore Locker.AcquireAll Locker.Once Locker.Inspect",
	"lock/locktest":  "Run",
	"lock/mysqllock": "New Schema",
	"lock/pglock":    "New Schema",
	"lock/redlock":   "New",
	"lock/zklock":    "New",
	"bloom":          "NewLocal NewRedis NewReplica NewDenyList Table Redis.Maintain",
	"canal":          "NewConsumer Handle BindFilter BindGroup KeysOf Mapping NewSQLCheckpoint",
	"canal/parking":  "NewFile Table",

	"canal/event": "NewRow", "canal/mysqlbinlog": "New", "canal/watermillsource": "New",
	"consistency/watermillqueue": "New", "lock/driver": "Driver", "otelcacheaside": "New",
}

// shownElsewhere are exported functions whose use another Example shows, or that are not for a
// beginning.
var shownElsewhere = map[string]string{
	"consistency.NewID":          "for a Queue of one's own",
	"lock.New":                   "for who writes a driver",
	"lock/locktest.RunInBubble":  "ExampleRun",
	"lock.GetFenced":             "ExampleSetFenced",
	"lock.NewSegmented":          "ExampleSegmented",
	"lock/mysqllock.CreateTable": "ExampleNew",
	"lock/pglock.CreateTable":    "ExampleNew",
	"bloom.Keys":                 "ExampleNewLocal",
	"canal.Bind":                 "ExampleNewConsumer",
	"canal.BindOutbox":           "canal/pglogical.ExampleOutbox",
	"canal.IntColumn":            "ExampleNewConsumer",
	"canal.TextColumn":           "ExampleBindFilter",
	"canal.TextOf":               "ExampleBindGroup, with a format instead of a function",
	"canal.Text":                 "ExampleBindGroup",
	"canal.NewFileCheckpoint":    "ExampleNewConsumer",
	"canal/event.NewRow":         "canal.ExampleHandle",
	"canal/event.NewColumns":     "canal.ExampleHandle",
	"canal/event.TextValue":      "canal.ExampleHandle",
	"canal/event.ValueOf":        "for a Source of one's own",
	"canal/event.Null":           "for a Source of one's own",
	"canal/event.Inexact":        "for a Source of one's own",
	"canal/event.InexactText":    "for a Source of one's own",
	"canal/event.Omitted":        "ExampleNewRow",
	"canal/parking.NewTable":     "ExampleTable",
	"canal/parking.Read":         "ExampleNewFile, by File.Read",
}

// declarations holds the results of declared, by folder.
var declarations = make(map[string][3]map[string]bool)

// declared are the names that the Go files of a folder export, as "Name" and "Type.Method", and the
// functions among them; examples those of its tests.
func declared(t *testing.T, folder string) (names, functions, examples map[string]bool) {
	t.Helper()
	if known, ok := declarations[folder]; ok {
		return known[0], known[1], known[2]
	}
	defer func() { declarations[folder] = [3]map[string]bool{names, functions, examples} }()
	names, functions, examples = make(map[string]bool), make(map[string]bool), make(map[string]bool)
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files in %s: %v", folder, err)
	}
	for _, file := range files {
		inTest := strings.HasSuffix(file, "_test.go")
		text, err := textOf(file)
		if err != nil {
			t.Fatal(err)
		}
		if inTest && !strings.Contains(text, "\nfunc Example") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				switch {
				case inTest && strings.HasPrefix(d.Name.Name, "Example"):
					examples[d.Name.Name] = true
				case inTest || !d.Name.IsExported():
				case d.Recv == nil:
					names[d.Name.Name], functions[d.Name.Name] = true, true
				default:
					names[receiver(d.Recv.List[0].Type)+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && !inTest && s.Name.IsExported() {
						names[s.Name.Name] = true
					}
				}
			}
		}
	}
	return names, functions, examples
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// A user who begins with something finds an Example of it.
func TestEachBeginningHasAnExample(t *testing.T) {
	for folder, list := range beginnings {
		names, functions, examples := declared(t, folder)
		listed := strings.Fields(list)
		for _, name := range listed {
			if !names[name] {
				t.Errorf("%s: there is no %s any more", folder, name)
			}
			want := "Example" + strings.ReplaceAll(name, ".", "_")
			if !slices.ContainsFunc(slices.Collect(maps.Keys(examples)), func(e string) bool {
				// also one of several: ExampleOptions_limits
				suffix, ok := strings.CutPrefix(e, want+"_")
				return e == want || ok && suffix != "" && strings.ToLower(suffix[:1]) == suffix[:1]
			}) {
				t.Errorf("%s: %s has no %s", folder, name, want)
			}
		}
		for f := range functions {
			if !slices.Contains(listed, f) && shownElsewhere[folder+"."+f] == "" {
				t.Errorf("%s: %s is neither among the beginnings nor shown elsewhere", folder, f)
			}
		}
	}
	for name, by := range shownElsewhere {
		folder, f, _ := strings.Cut(name, ".")
		_, functions, examples := declared(t, folder)
		example, _, _ := strings.Cut(by, ",")
		if !functions[f] || strings.HasPrefix(by, "Example") && !examples[example] {
			t.Errorf("%s: there is no such function, or no %s", name, by)
		}
	}
}

// notForUsers are folders of packages that users do not import.
var notForUsers = []string{"internal", "testdata", "examples", "example", "bench", "torture", "tools", "cmd"}

// TestEachPackageHasAnExample: pkg.go.dev shows an Example of each package that users import.
func TestEachPackageHasAnExample(t *testing.T) {
	found := 0
	err := filepath.WalkDir(".", func(folder string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		name := d.Name()
		if slices.Contains(notForUsers, name) || len(name) > 1 && name[0] == '.' {
			return filepath.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || !slices.ContainsFunc(files, func(f string) bool { return !strings.HasSuffix(f, "_test.go") }) {
			return err
		}
		found++
		if _, _, examples := declared(t, folder); len(examples) == 0 {
			t.Errorf("the package %s has no Example", folder)
		}
		return nil
	})
	if err != nil || found < 25 {
		t.Error(found, err)
	}
}

// Examples are run, and their output is compared. Those that need a server that cannot be embedded
// say so.
func TestExamplesAreRun(t *testing.T) {
	for folder := range beginnings {
		files, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
		for _, file := range files {
			source, err := textOf(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(source, "\nfunc Example") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, source,
				parser.SkipObjectResolution|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				d, ok := d.(*ast.FuncDecl)
				if !ok || !strings.HasPrefix(d.Name.Name, "Example") {
					continue
				}
				body := source[d.Body.Pos()-f.FileStart : d.Body.End()-f.FileStart]
				if !strings.Contains(body, "// Output:") && !strings.Contains(d.Doc.Text(), "It needs a ") {
					t.Errorf("%s: %s has no output to be compared, and does not say why", file, d.Name.Name)
				}
			}
		}
	}
}
