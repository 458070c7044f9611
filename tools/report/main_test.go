package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReport runs `go test -json` on a small module and compares what is said of it.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	files := map[string]string{
		"mod/go.mod":               "module example.com/mod\n\ngo 1.26\n",
		"mod/good/good_test.go":    "package good\nimport \"testing\"\nfunc TestGood(t *testing.T) { t.Log(\"quiet\") }\nfunc TestSkipped(t *testing.T) { t.Skip() }\n",
		"mod/bad/bad_test.go":      "package bad\nimport \"testing\"\nfunc TestBad(t *testing.T) { t.Run(\"a|b\", func(t *testing.T) { t.Fatal(\"wrong\") }); t.Run(\"fine\", func(t *testing.T) { t.Log(\"quiet\") }) }\nfunc TestFine(t *testing.T) { t.Log(\"quiet\") }\n",
		"mod/panics/p_test.go":     "package panics\nimport \"testing\"\nfunc TestPanics(t *testing.T) { panic(\"oh\") }\n",
		"mod/exits/exits_test.go":  "package exits\nimport (\"os\"; \"testing\")\nfunc TestMain(m *testing.M) { m.Run(); println(\"leaked\"); os.Exit(3) }\nfunc TestFine(t *testing.T) {}\n",
		"mod/broken/b_test.go":     "package broken\nimport \"testing\"\nfunc TestBroken(t *testing.T) { undefined() }\n",
		"mod/empty/empty.go":       "package empty\n",
		"green/go.mod":             "module example.com/green\n\ngo 1.26\n",
		"green/good/green_test.go": "package good\nimport \"testing\"\nfunc TestGreen(t *testing.T) {}\n",
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	said := func(module, file string) string {
		t.Helper()
		cmd := exec.Command("go", "test", "-json", "-count=1", "./...")
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOWORK=off")
		out, _ := cmd.CombinedOutput() // some tests fail
		var b strings.Builder
		if err := follow(strings.NewReader(string(out)), &b, module, "go test -count=1", file); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	contain := func(got string, wanted ...string) {
		t.Helper()
		for _, want := range wanted {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in:\n%s", want, got)
			}
		}
	}

	bad := said("mod", "mod.json")
	contain(bad, "ok  \texample.com/mod/good", "FAIL\texample.com/mod/bad", "wrong", "panic: oh",
		"leaked", "undefined: undefined", "FAIL\texample.com/mod/broken")
	if strings.Contains(bad, "quiet") {
		t.Errorf("the report has tests that passed:\n%s", bad)
	}
	said("green", "green.json")

	var b strings.Builder
	ok, err := summarize(&b, []string{"mod.json", "green.json", "absent.json"}, 3)
	if ok || err != nil {
		t.Errorf("summarize: %v, %v", ok, err)
	}
	contain(b.String(),
		`module mod: TestBad/a|b: (cd mod && go test -count=1 -run '^TestBad$/^a\|b$' ./bad)`,
		`module mod: TestPanics: (cd mod && go test -count=1 -run '^TestPanics$' ./panics)`,
		"module mod: example.com/mod/exits failed, but none of its tests did: (cd mod && go test -count=1 ./exits)",
		"module mod: example.com/mod/broken failed, but none of its tests did: (cd mod && go test -count=1 ./broken)",
		"absent.json: no such file or directory: its tests were not run",
		"the slowest tests:",
	)
	if want := "5 passed, 5 failed, 1 skipped\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("the last line is not %q:\n%s", want, b.String())
	}
	b.Reset()
	if ok, err := summarize(&b, []string{"green.json"}, 0); !ok || err != nil ||
		b.String() != "1 passed, 0 failed, 0 skipped\n" {
		t.Errorf("summarize: %v, %v:\n%s", ok, err, b.String())
	}
}
