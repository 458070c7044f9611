package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGuards looks for guards whose old text is not found exactly once, and for tests that
// do not exist.
func TestGuards(t *testing.T) {
	guards, err := readGuards("guards")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locate("../..", guards); err != nil {
		t.Fatal(err)
	}
}

const (
	program = `package main

import "fmt"

const (
	greeting = "good day"
	comma    = ", "
)

type greeter[T any] struct{ to T }

func (g *greeter[T]) greet() (text string, ok bool) {
	ok = true
loop:
	for i := range 3 {
		switch {
		case i == 1:
			break loop
		}
		text += greeting
	}
	return text + comma + fmt.Sprint(g.to), ok
}

func say(text string) { fmt.Println(text) }

func main() {
	text, ok := (&greeter[string]{"world"}).greet()
	say(text)
	if !ok {
		panic("not ok")
	}
}
`
	entries = `# a comment
guard night
the day
test . TestNight
edit main.go greeting
-	greeting = "good day"
+	greeting = "good night"

guard once
greets once
test . TestNight
edit main.go greeter.greet
-case i == 1:
+case i == 2:
edit main.go say
-func say(text string) { fmt.Println(text) }
+func say(text string) { fmt.Println(text + "!") }

guard panics
is ok
test . TestNight
edit main.go greeter.greet
 ok = true
-loop:
+	if true {
+		panic("here")
+	}
+loop:

guard twice
greets with more than a comma
test . TestNight
edit main.go greeter.greet
-text + comma
+text + comma + comma
`
)

// module is a folder with the program.
func module(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":       "module example.com/greet\n\ngo 1.26\n",
		"main.go":      program,
		"main_test.go": "package main\n\nimport \"testing\"\n\nfunc TestNight(t *testing.T) {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestOverlay builds a program once, and runs it with each of its guards and without.
func TestOverlay(t *testing.T) {
	dir := module(t)
	guards, err := parseGuards("guards.txt", entries)
	if err != nil {
		t.Fatal(err)
	}
	sources, err := locate(dir, guards)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := writeOverlay(dir, t.TempDir(), sources)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "greet")
	build := exec.Command("go", "build", "-overlay", overlay, "-o", binary, ".")
	build.Dir, build.Env = dir, append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for guard, want := range map[string]string{
		"":       "good day, world\n",
		"night":  "good night, world\n",
		"once":   "good daygood day, world!\n",
		"panics": "panic: here",
		"twice":  "good day, , world\n",
	} {
		cmd := exec.Command(binary)
		cmd.Env = append(os.Environ(), "CACHEASIDE_MUTANT="+guard)
		out, _ := cmd.CombinedOutput()
		if !strings.HasPrefix(string(out), want) {
			t.Errorf("without %q: %s, want %s", guard, out, want)
		}
		// Line numbers are those of the original file, plus the lines that an edit adds before.
		if guard == "panics" && !strings.Contains(string(out), "/main.go:15 ") {
			t.Errorf("the panic is not at its line of main.go:\n%s", out)
		}
	}
}

// TestBadEntries: the error names the entry and its fault.
func TestBadEntries(t *testing.T) {
	const good = "guard g\nwhat\ntest . TestNight\nedit main.go say\n-func say(text string) { fmt.Println(text) }\n"
	quoting := func(text string) string {
		return strings.Replace(good, "-func say(text string) { fmt.Println(text) }", "-"+text, 1)
	}
	for name, c := range map[string]struct{ entry, want string }{
		"no guard":        {"test . TestNight\n", "an entry begins with guard NAME"},
		"no test":         {strings.Replace(good, "test . TestNight\n", "", 1), "guard g needs a test and an edit"},
		"no edit":         {"guard g\nwhat\ntest . TestNight\n", "guard g needs a test and an edit"},
		"no old text":     {"guard g\nwhat\ntest . TestNight\nedit main.go say\n+x\n", "guard g: an edit of say in main.go has no old text"},
		"unknown line":    {"guard g\nwhat\nwhy\n", `guard g: cannot parse "why"`},
		"not found":       {strings.Replace(good, "Println", "Print", 1), "guard g: main.go: say: the old text is not found"},
		"twice":           {"guard g\nwhat\ntest . TestNight\nedit main.go greeter.greet\n-\t}\n", "guard g: main.go: greeter.greet: the old text is found more than once"},
		"fragment":        {quoting("fmt.Println(text)"), ""},
		"fragments":       {quoting("text"), "guard g: main.go: say: the old text is found more than once"},
		"lines in one":    {quoting("fmt.\n-Println(text)"), "the old text is not found"},
		"no declaration":  {strings.Replace(good, "main.go say", "main.go sing", 1), "guard g: main.go: there is no sing"},
		"no file":         {strings.Replace(good, "main.go", "other.go", 1), "no such file"},
		"no such test":    {strings.Replace(good, "TestNight", "TestDay", 1), "guard g: there is no test TestDay in ."},
		"the same again":  {good + "edit main.go say\n-func say(text string) { fmt.Println(text) }\n", "two edits change the same line"},
		"good, of course": {good, ""},
	} {
		t.Run(name, func(t *testing.T) {
			guards, err := parseGuards("guards.txt", c.entry)
			if err == nil {
				_, err = locate(module(t), guards)
			}
			if got := errText(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestShares: the shares together are all rows, each once, and a share is of few folders.
func TestShares(t *testing.T) {
	var guards []*guard
	for i := range 47 {
		guards = append(guards, &guard{name: fmt.Sprint(i), tests: []test{{folder: fmt.Sprint(i % 5)}, {folder: "."}}})
	}
	seen := make(map[row]int)
	for offset := range 10 {
		folders := make(map[string]bool)
		for _, row := range choose(guards, nil, 10, 30+offset) {
			seen[row]++
			folders[row.folder] = true
		}
		if len(folders) > 2 {
			t.Errorf("share %d is of %d folders", offset, len(folders))
		}
	}
	if len(seen) != 2*47 {
		t.Errorf("%d rows of %d", len(seen), 2*47)
	}
	for row, n := range seen {
		if n != 1 {
			t.Errorf("%s is in %d shares", row.guard.name, n)
		}
	}
}
