package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A runner runs tests without their guards.
type runner struct {
	root, work, overlay string
	mu                  sync.Mutex
	bad                 int
}

const atOnce = 3 // maximum of rows that run concurrently

var errSurvived = errors.New("guards survived, or their tests did not run")

// compile compiles the packages of the patched files.
func compile(ctx context.Context, root, overlay string, patches map[string]*source) (err error) {
	var folders []string
	for file := range patches {
		folders = append(folders, filepath.Dir(file))
	}
	slices.Sort(folders)
	for _, folder := range slices.Compact(folders) {
		cmd := goCommand(ctx, filepath.Join(root, folder), "build", "-trimpath", "-overlay", overlay,
			"-o", os.DevNull, ".")
		if out, cause := cmd.CombinedOutput(); cause != nil {
			err = errors.Join(err, fmt.Errorf("%s without its guards does not compile: %w\n%s", folder, cause, out))
		}
	}
	return err
}

func goCommand(ctx context.Context, folder string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off")
	return cmd
}

func (r *runner) runAll(rows []row, total int) error {
	var folders []string
	for _, row := range rows {
		if !slices.Contains(folders, row.folder) {
			folders = append(folders, row.folder)
		}
	}
	for _, folder := range folders {
		cmd := goCommand(context.Background(), filepath.Join(r.root, folder), "test", "-c", "-trimpath", "-vet=off",
			"-overlay", r.overlay, "-o", r.binary(folder), ".")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("the tests of %s without guards do not build: %w\n%s", folder, err, out)
		}
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, row := range rows {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			r.run(row)
		})
	}
	all.Wait()
	fmt.Printf("%d of %d rows\n", len(rows), total)
	if r.bad > 0 {
		return fmt.Errorf("%d: %w", r.bad, errSurvived)
	}
	return nil
}

func (r *runner) binary(folder string) string {
	return filepath.Join(r.work, strings.NewReplacer("/", "_", ".", "_").Replace(folder)+".test")
}

// manner says how to run a test, and how to recognize that it has noticed the missing guard.
type manner struct {
	limit time.Duration
	sign  *regexp.Regexp // matches the output of a test that has noticed it
	args  []string
	tries int
}

var (
	failed  = regexp.MustCompile(`(?m)^ *--- FAIL|^panic: |^fatal error: `)
	late    = regexp.MustCompile(`(?m)^panic: test timed out`)
	torture = regexp.MustCompile(` VIOLATION `)
	stale   = regexp.MustCompile(` keys are stale|no consumer has caught up`)
)

func mannerOf(t test) manner {
	m := manner{limit: 2 * time.Minute, sign: failed, tries: 1}
	if t.folder == "torture" { // a failure without a violation does not prove anything
		m.limit, m.sign = 3*time.Minute, torture
	}
	if t.name == "TestConsumerIsKilled" { // more kills find more
		m.limit, m.sign, m.args = 5*time.Minute, stale, []string{"-kill.kills=15"}
		m.tries = 2
	}
	if strings.Contains(t.name, "History") { // these tests find errors at random, and fewer on a busy machine
		m.tries = 2
	}
	return m
}

func (r *runner) run(row row) {
	m := mannerOf(row.test)
	began := time.Now()
	var out []byte
	var err error
	for range m.tries {
		if out, err = r.try(row, m); err != nil {
			break
		}
	}
	title := fmt.Sprintf("%s: %s in %s", row.guard.name, row.test.name, row.folder)
	switch {
	case err == nil && bytes.Contains(out, []byte("no tests to run")):
		r.report(true, "NO TEST   %s\n", title)
	case err == nil:
		r.report(true, "SURVIVED  %s passes without it\n", title)
	case late.Match(out):
		r.report(true, "SURVIVED  %s only fails because of the time limit of %v\n", title, m.limit)
	case !m.sign.Match(out):
		r.report(true, "BROKEN    %s did not run: %v\n%s\n", title, err, out)
	default:
		r.report(false, "killed    %-20s by %-50s in %3.0f s: %s\n", row.guard.name, row.test.name,
			time.Since(began).Seconds(), row.promise)
	}
}

// try runs the test once without its guard, and returns its output.
func (r *runner) try(row row, m manner) ([]byte, error) {
	var parts []string
	for part := range strings.SplitSeq(row.test.name, "/") {
		parts = append(parts, "^"+part+"$")
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.limit+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary(row.folder), append([]string{
		"-test.run", strings.Join(parts, "/"), "-test.timeout", m.limit.String()}, m.args...)...)
	cmd.Dir = filepath.Join(r.root, row.folder)
	// Tests that build programs must build them without the guard, too.
	cmd.Env = append(os.Environ(), "CACHEASIDE_MUTANT="+row.guard.name,
		"GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath -overlay="+r.overlay, "GOWORK=off")
	return cmd.CombinedOutput()
}

// report prints a result and counts the bad ones.
func (r *runner) report(bad bool, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if bad {
		r.bad++
	}
	fmt.Printf(format, args...)
}
