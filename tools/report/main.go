// Command report reads the output of `go test -json`, prints it for people, and summarizes it.
//
//	go test -json ./... 2>&1 | report -module DIR -as COMMAND -to FILE
//	report -sum FILE...
//
// The first form prints one line per package and the whole output of failing tests. It copies its
// input to FILE. COMMAND is the command that runs the tests, and DIR the folder of their module.
// The second form reads such files. It prints the slowest tests, each failure with the command
// that runs only that test, and the number of tests. It exits with 1 if a test has failed.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// An event is a line of `go test -json`, or the first line of a file, which says how its tests were
// run.
type event struct {
	Action     string
	Package    string  `json:",omitempty"`
	ImportPath string  `json:",omitempty"` // of a package that does not build
	Test       string  `json:",omitempty"`
	Output     string  `json:",omitempty"`
	Elapsed    float64 `json:",omitempty"` // seconds

	Module, Path, Command string `json:",omitempty"` // of the action "begin": folder, module path, command
}

const begin = "begin"

func main() {
	module := flag.String("module", ".", "the folder of the module under test")
	command := flag.String("as", "go test", "the command that runs the tests")
	to := flag.String("to", os.DevNull, "the file to which the input is copied")
	sum := flag.Bool("sum", false, "summarize the files")
	slowest := flag.Int("slowest", 20, "with -sum: how many of the slowest tests to list")
	flag.Parse()
	var err error
	ok := true
	if *sum {
		ok, err = summarize(os.Stdout, flag.Args(), *slowest)
	} else {
		err = follow(os.Stdin, os.Stdout, *module, *command, *to)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// follow prints the events read from in, and copies them to a file.
func follow(in io.Reader, out io.Writer, module, command, to string) (err error) {
	path, err := modulePath(module)
	if err != nil {
		return err
	}
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	first, err := json.Marshal(event{Action: begin, Module: module, Path: path, Command: command})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(file, "%s\n", first); err != nil {
		return err
	}
	return newRun().read(io.TeeReader(in, file), func(p *pkg) { p.print(out) })
}

// modulePath returns the module's path, as its go.mod declares it.
func modulePath(dir string) (string, error) {
	b, err := os.ReadFile(dir + "/go.mod")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(name), nil
		}
	}
	return "", fmt.Errorf("%s/go.mod names no module", dir)
}

// A run is the output of one `go test -json`.
type run struct {
	begin    event
	packages map[string]*pkg
	order    []*pkg
}

// A pkg is the output about one package.
type pkg struct {
	name    string
	lines   []event // with output
	tests   map[string]*test
	order   []*test
	action  string // pass, fail, skip, or "": it did not end
	elapsed float64
}

type test struct {
	name, action string
	elapsed      float64
}

func newRun() *run { return &run{packages: map[string]*pkg{}} }

func (r *run) pkg(name string) *pkg {
	p := r.packages[name]
	if p == nil {
		p = &pkg{name: name, tests: map[string]*test{}}
		r.packages[name] = p
		r.order = append(r.order, p)
	}
	return p
}

// read parses the output. It calls ended for each package when its tests have ended, and finally
// for each package whose tests did not end.
func (r *run) read(in io.Reader, ended func(*pkg)) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line, ended)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	for _, p := range r.order {
		if p.action == "" {
			p.action = "fail"
			ended(p)
		}
	}
	return nil
}

func (r *run) line(line []byte, ended func(*pkg)) {
	var e event
	if json.Unmarshal(line, &e) != nil { // a message of the go command itself
		e = event{Action: "output", Output: string(line)}
	}
	if e.Action == begin {
		r.begin = e
		return
	}
	// A package that does not build has an import path like "a/b [a/b.test]".
	name, _, _ := strings.Cut(e.Package+e.ImportPath, " ")
	if name == "" && strings.TrimSpace(e.Output) == "" || strings.HasPrefix(e.Output, "go: downloading") {
		return
	}
	if name == "" {
		name = "the go command"
	}
	p := r.pkg(name)
	if e.Output != "" {
		p.lines = append(p.lines, e)
	}
	if e.Test == "" {
		switch e.Action {
		case "pass", "fail", "skip":
			p.action, p.elapsed = e.Action, e.Elapsed
			ended(p)
		case "build-fail":
			p.action = "fail"
			ended(p)
		}
		return
	}
	switch e.Action {
	case "run":
		t := &test{name: e.Test}
		p.tests[e.Test] = t
		p.order = append(p.order, t)
	case "pass", "fail", "skip":
		if t := p.tests[e.Test]; t != nil {
			t.action, t.elapsed = e.Action, e.Elapsed
		}
	}
}

// failed returns the tests that have failed, or have not ended in a failed package. It leaves out a
// test if it returns one of its subtests.
func (p *pkg) failed() (failed []*test) {
	if p.action != "fail" {
		return nil
	}
	for _, t := range p.order {
		if t.action == "fail" || t.action == "" {
			failed = append(failed, t)
		}
	}
	all := slices.Clone(failed)
	return slices.DeleteFunc(failed, func(t *test) bool {
		return slices.ContainsFunc(all, func(sub *test) bool { return strings.HasPrefix(sub.name, t.name+"/") })
	})
}

// print prints the line of a package. For a failed package it first prints the output of the failed
// tests, and the output that belongs to no test.
func (p *pkg) print(out io.Writer) {
	switch p.action {
	case "pass":
		fmt.Fprintf(out, "ok  \t%s\t%.1fs\n", p.name, p.elapsed)
		return
	case "skip":
		return // it has no tests
	}
	failed := p.failed()
	for _, line := range p.lines {
		show := line.Test == "" && !strings.HasPrefix(line.Output, "ok  \t")
		for _, t := range failed {
			show = show || t.name == line.Test || strings.HasPrefix(t.name, line.Test+"/")
		}
		if show && !strings.HasPrefix(line.Output, "=== ") {
			fmt.Fprint(out, line.Output)
		}
	}
	fmt.Fprintf(out, "FAIL\t%s\t%.1fs\n", p.name, p.elapsed)
}

// summarize prints the summary of the files, and reports whether all tests have passed.
func summarize(out io.Writer, files []string, slowest int) (ok bool, err error) {
	var all summary
	for _, name := range files {
		if err := all.read(name); err != nil {
			return false, err
		}
	}
	if slowest > 0 {
		all.printSlowest(out, slowest)
	}
	for i, f := range all.failures {
		if i == 0 {
			fmt.Fprintln(out, "failed:")
		}
		fmt.Fprintln(out, "  "+f)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", all.passed, len(all.failures), all.skipped)
	return len(all.failures) == 0, nil
}

// A summary holds the results of all runs.
type summary struct {
	tests           []timedTest
	failures        []string
	passed, skipped int
}

// A timedTest is a test with its package and the command that ran it.
type timedTest struct {
	test       *test
	total, run string
}

// read adds the run in a file.
func (s *summary) read(name string) error {
	file, err := os.Open(name)
	if err != nil {
		s.failures = append(s.failures, fmt.Sprintf("%v: its tests were not run", err))
		return nil
	}
	defer file.Close() //nolint:errcheck // opened for reading
	r := newRun()
	if err := r.read(file, func(*pkg) {}); err != nil {
		return err
	}
	if len(r.order) == 0 {
		s.failures = append(s.failures, fmt.Sprintf("module %s: no test was run: %s", r.begin.Module, r.begin.Command))
	}
	for _, p := range r.order {
		s.add(r, p)
	}
	return nil
}

// add adds a package of a run.
func (s *summary) add(r *run, p *pkg) {
	for _, t := range p.order {
		switch t.action {
		case "pass":
			s.passed++
		case "skip":
			s.skipped++
		}
		if !strings.Contains(t.name, "/") {
			s.tests = append(s.tests, timedTest{t, p.name, r.begin.Command})
		}
	}
	failed := p.failed()
	if p.action == "fail" && len(failed) == 0 {
		s.failures = append(s.failures, fmt.Sprintf("module %s: %s failed, but none of its tests did: %s",
			r.begin.Module, p.name, r.command(p, "")))
	}
	for _, t := range failed {
		title := t.name
		if t.action == "" {
			title += " (did not end)"
		}
		s.failures = append(s.failures, fmt.Sprintf("module %s: %s: %s", r.begin.Module, title, r.command(p, t.name)))
	}
}

func (s *summary) printSlowest(out io.Writer, most int) {
	slices.SortFunc(s.tests, func(a, b timedTest) int { return int(1000 * (b.test.elapsed - a.test.elapsed)) })
	fmt.Fprintf(out, "the slowest tests:\n")
	for _, t := range s.tests[:min(most, len(s.tests))] {
		took := time.Duration(t.test.elapsed * float64(time.Second)).Round(100 * time.Millisecond)
		fmt.Fprintf(out, "%8s  %s in %s (%s)\n", took, t.test.name, t.total, t.run)
	}
}

// command returns the command that runs only this test, or the whole package if test is "".
func (r *run) command(p *pkg, test string) string {
	cmd := r.begin.Command
	if test != "" {
		var parts []string
		for part := range strings.SplitSeq(test, "/") {
			parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
		}
		cmd += " -run '" + strings.ReplaceAll(strings.Join(parts, "/"), "'", `'\''`) + "'"
	}
	dir := "."
	if rest, ok := strings.CutPrefix(p.name, r.begin.Path+"/"); ok {
		dir = "./" + rest
	}
	cmd += " " + dir
	if r.begin.Module != "." {
		cmd = "(cd " + r.begin.Module + " && " + cmd + ")"
	}
	return cmd
}
