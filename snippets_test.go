package cacheaside

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
	"strings"
	"testing"
)

// before is what the snippets of README.md and docs use, and do not show.
const before = `package snippet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/envelope"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/meter"
%s)

type User struct {
	ID   int64
	Name string
}

var (
	ctx                   context.Context
	db                    *sqlx.DB
	tx                    *sqlx.Tx
	rdb                   *redis.Client
	cache                 *cacheaside.Cache
	users                 *cacheaside.Loader[int64, User]
	idsByEmail            *cacheaside.Loader[string, int64]
	loadUser              func(context.Context, int64) (User, error)
	loadPrice             func(context.Context, string) (int, error)
	id                    int64
	ids, friendIDs, popular []int64
	name, email, password string
	w                     *consistency.Writer
	filter                bloom.Filter
	checkpoint            canal.Checkpoint
	locker                *lock.Locker
	bindings              []canal.Binding
	index                 func(context.Context, event.Row) error
	page                  func(canal.Alert)
	isBlockedInTheDatabase func(context.Context, string) (bool, error)
%s)

func _() error {
%s
return nil
}
`

// elsewhere are the modules whose packages some snippets import, and what else those use.
var elsewhere = map[string]struct{ folder, path, declares string }{
	"mysqlbinlog.":     {"canal/mysqlbinlog", "canal/mysqlbinlog", ""},
	"watermillsource.": {"canal/watermillsource", "canal/watermillsource", "subscriber message.Subscriber\n"},
	"otelcacheaside.":  {"otelcacheaside", "otelcacheaside", ""},
}

// TestReadmeCompiles: each Go snippet of README.md and of docs is right, but for what it leaves out
// on purpose: variables that nothing uses. Those of docs/migration.md are compiled and run.
func TestReadmeCompiles(t *testing.T) {
	exports := make(map[string]map[string]string) // of each module, by folder
	all := 0
	for _, page := range pages(t) {
		if page == filepath.Join("docs", "migration.md") {
			continue
		}
		text, err := textOf(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range blocks.FindAllStringSubmatch(text, -1) {
			all++
			folder, imports, declares := ".", "", ""
			for name, module := range elsewhere {
				if strings.Contains(m[3], name) {
					folder, declares = module.folder, module.declares
					imports = fmt.Sprintf("%q\n", "github.com/cacheaside/cacheaside/"+module.path)
					if declares != "" {
						imports += fmt.Sprintf("%q\n", "github.com/ThreeDotsLabs/watermill/message")
					}
				}
			}
			if exports[folder] == nil {
				exports[folder] = exported(t, folder)
			}
			for _, err := range compile(fmt.Sprintf(before, imports, declares, m[3]), exports[folder]) {
				t.Errorf("%s, snippet %d: %v\n%s", page, i+1, err, m[3])
			}
		}
	}
	if all < 15 {
		t.Errorf("only %d snippets", all)
	}
}

// TestSnippetsThatAreWrong: what the test of the snippets would say.
func TestSnippetsThatAreWrong(t *testing.T) {
	exports := exported(t, ".")
	for snippet, want := range map[string]string{
		"u, err := users.Get(ctx, 42)":                   "",
		"u, err := users.Get(ctx, \"42\")":               "cannot use",
		"err := users.Forget(ctx, 42)":                   "Forget",
		"err := users.InvalidateAll(ctx":                 "missing",
		"var o cacheaside.LoaderOptions; o.Lifetime = 1": "Lifetime",
	} {
		err := errors.Join(compile(fmt.Sprintf(before, "", "", snippet), exports)...)
		if got := fmt.Sprint(err); (err != nil) != (want != "") || err != nil && !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", snippet, err, want)
		}
	}
}

// exported are the files with what packages export, of all that a module's packages import.
func exported(t *testing.T, folder string) map[string]string {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "."}
	f, err := parser.ParseFile(token.NewFileSet(), "", fmt.Sprintf(before, "", "", ""), parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.Imports {
		args = append(args, strings.Trim(s.Path.Value, `"`))
	}
	list := exec.CommandContext(t.Context(), "go", args...)
	list.Dir, list.Stderr = folder, os.Stderr
	b, err := list.Output()
	if err != nil {
		t.Fatal(folder, err)
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return files
}

// compile returns what is wrong with a file.
func compile(text string, exports map[string]string) (all []error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, "snippet.go", text, parser.SkipObjectResolution)
	if err != nil {
		return []error{err}
	}
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no package %s", path)
		}
		return os.Open(exports[path])
	})
	config := types.Config{Importer: imports, Error: func(err error) {
		if e, ok := errors.AsType[types.Error](err); !ok || !e.Soft { // soft: a variable or an import that nothing uses
			all = append(all, err)
		}
	}}
	_, _ = config.Check("snippet", files, []*ast.File{f}, nil)
	return all
}
