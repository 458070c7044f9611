package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestWorkflow: the workflow runs .ci/run with both supported releases of Go.
func TestWorkflow(t *testing.T) {
	workflow, script := read(t, ".github/workflows/ci.yml"), read(t, "scripts/other-go.sh")
	release := regexp.MustCompile(`1\.\d+\.\d+`)
	in := regexp.MustCompile(`(?m)^ +go: \[.*\]$`).FindString(workflow)
	want := release.FindAllString(regexp.MustCompile(`(?m)^older=.*$`).FindString(script), -1)
	if got := release.FindAllString(in, -1); len(want) != 2 || !slices.Equal(got, want) {
		t.Errorf("the workflow has the releases %q of Go, scripts/other-go.sh has %q", got, want)
	}
	if !strings.Contains(workflow, "- run: .ci/run\n") {
		t.Error("the workflow does not call .ci/run")
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// released is a small repository like this one: a root, a nested module that users import, and an
// example.
type released struct {
	*testing.T
	dir string
}

func newReleased(t *testing.T) *released {
	t.Helper()
	r := &released{t, t.TempDir()}
	script := read(t, "scripts/release.sh")
	r.write("scripts/release.sh", script)
	if err := os.Chmod(filepath.Join(r.dir, "scripts/release.sh"), 0o755); err != nil { //nolint:gosec // a script
		t.Fatal(err)
	}
	r.write("go.mod", "module example.org/shop\n\ngo 1.26.0\n")
	r.write("shop.go", "package shop\n\nfunc Open() {}\n\nfunc Close() {}\n")
	for _, folder := range []string{"sub", "examples/one"} {
		up := strings.Repeat("../", strings.Count(folder, "/")) + ".."
		r.write(folder+"/go.mod", "module example.org/shop/"+folder+"\n\ngo 1.26.0\n\n"+
			"require example.org/shop v0.0.0\n\nreplace example.org/shop => "+up+"\n")
		r.write(folder+"/a.go", "package a\n\nimport _ \"example.org/shop\"\n")
	}
	r.write("docs/accept/a.log", "figures\n")
	r.write("CHANGELOG.md", "# Changelog\n\n## v0.1.0 (not released yet)\n\n### Added\n\n- All.\n")
	r.git("init", "-q", "-b", "main")
	r.commit()
	return r
}

func (r *released) write(name, text string) {
	r.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
}

func (r *released) command(name string, args ...string) (string, error) {
	c := exec.CommandContext(r.Context(), name, args...)
	c.Dir = r.dir
	c.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@example.org", "GOWORK=off")
	out, err := c.CombinedOutput()
	return string(out), err
}

func (r *released) git(args ...string) string {
	r.Helper()
	out, err := r.command("git", args...)
	if err != nil {
		r.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return out
}

func (r *released) commit() {
	r.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "A change")
}

// script runs the script, and asserts what it says.
func (r *released) script(works bool, says string, args ...string) {
	r.Helper()
	out, err := r.command("scripts/release.sh", args...)
	if strings.Contains(out, "apidiff cannot be installed") && os.Getenv("CI") != "true" {
		r.Skip("without a network: " + out)
	}
	if (err == nil) != works || !strings.Contains(out, says) {
		r.Fatalf("%q: %v, want %q in\n%s", args, err, says, out)
	}
}

// TestRelease: a dry run changes nothing, and a release tags the modules that users import.
// Incompatible changes are refused in a patch release, and need an entry in a minor one.
func TestRelease(t *testing.T) {
	r := newReleased(t)
	before := r.git("rev-parse", "HEAD")
	r.script(true, "tags: v0.1.0 sub/v0.1.0\n", "v0.1.0")
	worktrees := strings.Count(r.git("worktree", "list"), "\n")
	if r.git("rev-parse", "HEAD") != before || r.git("tag") != "" || worktrees != 1 {
		t.Fatal("the dry run has changed the repository")
	}
	r.script(true, "git push --atomic origin main v0.1.0 sub/v0.1.0", "-yes", "v0.1.0")
	if got := r.git("tag"); got != "sub/v0.1.0\nv0.1.0\n" {
		t.Errorf("tags: %q", got)
	}
	if got := r.git("show", "HEAD:sub/go.mod"); !strings.Contains(got, "require example.org/shop v0.1.0") {
		t.Error(got)
	}
	if got := r.git("show", "v0.1.0:CHANGELOG.md"); !strings.Contains(got, "## v0.1.0 (2") {
		t.Error(got)
	}

	r.script(false, "the tag v0.1.0 exists", "v0.1.0")
	r.script(false, "the last release is v0.1.0", "v0.0.9")
	r.script(false, "usage", "0.2")
	r.script(false, "not of a release to come", "v0.1.1")
	r.write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- More.\n\n"+"## v0.1.0\n\n- All.\n")
	r.script(false, "not committed", "v0.1.1")
	r.commit()
	r.script(true, "compatible with v0.1.0", "v0.1.1")
	r.write("shop.go", "package shop\n\nfunc Open() {}\n\nfunc Close(force bool) {}\n")
	r.commit()
	r.script(false, "must raise the minor version", "v0.1.1")
	r.script(false, "no section Changed or Removed", "v0.2.0")
	r.write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n### Changed\n\n- `Close` has a parameter.\n")
	r.commit()
	r.script(true, "incompatible with v0.1.0: example.org/shop", "v0.2.0")
	r.script(true, "tags: v1.0.0 sub/v1.0.0", "v1.0.0")
}

// TestGlossaryIsForUsers: words of internal packages are in docs/design.md.
func TestGlossaryIsForUsers(t *testing.T) {
	if i := strings.Index(read(t, "docs/glossary.md"), "internal/"); i >= 0 {
		t.Error("docs/glossary.md names a package that users do not see")
	}
}
