package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// sentinels are the exported errors of the packages, by folder and name.
var sentinels = map[string]map[string]error{
	".": {
		"ErrNotFound": cacheaside.ErrNotFound, "ErrLoadFailed": cacheaside.ErrLoadFailed, "ErrLoadTimeout": cacheaside.ErrLoadTimeout,
		"ErrUnavailable": cacheaside.ErrUnavailable, "ErrLoadCycle": cacheaside.ErrLoadCycle, "ErrRedis": cacheaside.ErrRedis,
		"ErrHoldLost": cacheaside.ErrHoldLost, "ErrBadKey": cacheaside.ErrBadKey, "ErrClosed": cacheaside.ErrClosed,
	},
	"lock": {
		"ErrHeld": lock.ErrHeld, "ErrLost": lock.ErrLost, "ErrReleased": lock.ErrReleased,
		"ErrClosed": lock.ErrClosed, "ErrStale": lock.ErrStale, "ErrNoReply": lock.ErrNoReply,
		"ErrAllSeen": lock.ErrAllSeen,
	},
	"lock/driver": {"ErrHeld": driver.ErrHeld, "ErrLost": driver.ErrLost},
	"bloom": {
		"ErrFewer": bloom.ErrFewer, "ErrForeign": bloom.ErrForeign, "ErrRebuilding": bloom.ErrRebuilding,
	},
	"consistency": {"ErrUnknown": consistency.ErrUnknown, "ErrQueued": consistency.ErrQueued, "ErrNotQueued": consistency.ErrNotQueued,
		"ErrNotInvalidated": consistency.ErrNotInvalidated},
	"canal":       {"ErrPositionLost": canal.ErrPositionLost, "ErrSetup": canal.ErrSetup, "ErrSourceClosed": canal.ErrSourceClosed, "ErrSuperseded": canal.ErrSuperseded},
	"canal/event": {"ErrUnknownColumn": event.ErrUnknownColumn},
}

// TestSentinelsNameTheirPackage checks that the text of each exported error begins with the name of
// the package that a user imports, once, and that sentinels lists all of them. No other variable is
// exported, because any package can assign to it.
func TestSentinelsNameTheirPackage(t *testing.T) {
	found := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := filepath.Base(path); entry.IsDir() && (base == "internal" || base == "examples" || base == "bench" ||
			base == "torture" || base != "." && strings.HasPrefix(base, ".")) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		for _, name := range exportedVariables(t, path) {
			found++
			folder := filepath.ToSlash(filepath.Dir(path))
			err, listed := sentinels[folder][name]
			if !listed {
				t.Errorf("%s: %s is an exported variable that is not in sentinels", path, name)
				continue
			}
			root, _, _ := strings.Cut(folder, "/")
			if root == "." {
				root = "cacheaside"
			}
			if text := err.Error(); !strings.HasPrefix(text, root+": ") || strings.Count(text, root+": ") != 1 {
				t.Errorf("%s: the text of %s does not begin with %q, once: %q", path, name, root+": ", text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	listed := 0
	for _, errs := range sentinels {
		listed += len(errs)
	}
	if found != listed {
		t.Errorf("%d exported errors, and sentinels lists %d", found, listed)
	}
}

// exportedVariables returns the names of the exported variables that a file declares.
func exportedVariables(t *testing.T, path string) (names []string) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.VAR {
			continue
		}
		for _, spec := range gen.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if name.IsExported() {
					names = append(names, name.Name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}
