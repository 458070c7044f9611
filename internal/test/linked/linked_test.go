package linked

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// packages returns the packages that a package links.
func packages(t *testing.T, program string) []string {
	t.Helper()
	list := exec.Command("go", "list", "-deps", program)
	list.Env = append(os.Environ(), "GOPROXY=off")
	var errs bytes.Buffer
	list.Stderr = &errs
	b, err := list.Output()
	if err != nil {
		t.Fatal(err, errs.String())
	}
	return strings.Fields(string(b))
}

// A program that only reads links nothing of what it does not use: no locks, no filters, no SQL, no
// codec but its own, no servers and templates. It would have
// what go-redis links by itself anyway.
func TestWhatGetLinks(t *testing.T) {
	const self = "github.com/cacheaside/cacheaside"
	allowed := strings.Fields(`
		github.com/dgraph-io/ristretto github.com/dustin/go-humanize github.com/klauspost/compress
		github.com/sony/gobreaker golang.org/x/sys golang.org/x/time`)
	never := strings.Fields("encoding/gob html/template net/http net/rpc net/textproto text/template")
	plain := packages(t, "./plain")
	var packagesHere int
	var modules []string
	for _, p := range packages(t, "./get") {
		parts := strings.Split(p, "/")
		switch {
		case slices.Contains(plain, p):
		case p == self, strings.HasPrefix(p, self+"/internal/"):
			packagesHere++
		case strings.Contains(parts[0], "."):
			modules = append(modules, strings.Join(parts[:min(len(parts), 3)], "/"))
		case slices.Contains(never, p):
			t.Errorf("it links %s", p)
		}
	}
	slices.Sort(modules)
	modules = slices.Compact(modules)
	t.Logf("%d packages of its own, and of %s", packagesHere, modules)
	for _, m := range modules {
		if !slices.Contains(allowed, m) {
			t.Errorf("it links %s", m)
		}
	}
}

// A program with locks in one service links no other service: package lock links Redis, and each
// other service is a package or a module of its own.
func TestWhatLocksLink(t *testing.T) {
	for program, names := range map[string]string{
		"../../../lock":           "go-redsync go-sql-driver jackc",
		"../../../lock/mysqllock": "go-redsync jackc",
		"../../../lock/pglock":    "go-redsync go-sql-driver jackc", // the program chooses the driver
		"../../../lock/redlock":   "go-sql-driver jackc",
	} {
		for _, p := range packages(t, program) {
			if slices.ContainsFunc(strings.Fields(names), func(name string) bool { return strings.Contains(p, name) }) {
				t.Errorf("%s links %s", program, p)
			}
		}
	}
	if !slices.ContainsFunc(packages(t, "../../../lock/redlock"),
		func(p string) bool { return strings.HasPrefix(p, "github.com/go-redsync/redsync/v4/redis/goredis") }) {
		t.Error("a Redlock does not link redsync's pools")
	}
}
