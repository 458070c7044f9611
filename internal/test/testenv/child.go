package testenv

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// childVariable is the environment variable that names the function which a copy of the test binary
// must run.
const childVariable = "TESTENV_CHILD"

var children = map[string]func(){}

// RegisterChild registers a function that SpawnChild can run in its own process. It must be called
// from an init function in a _test.go file of a package whose TestMain calls Main. The function
// communicates with the test through os.Stdin and os.Stdout. When it returns, the process exits
// with code 0.
func RegisterChild(name string, f func()) {
	if children[name] != nil {
		panic("testenv: two children named " + name)
	}
	children[name] = f
}

func runChild(name string) int {
	// Processes that the child starts must not run the child's function.
	os.Unsetenv(childVariable)
	f := children[name]
	if f == nil {
		fmt.Fprintf(os.Stderr, "testenv: no child named %q\n", name)
		return 2
	}
	f()
	stopAll()
	return 0
}

// A Child is a copy of the test binary that runs a registered function. It is killed when its test
// or the test process ends.
type Child struct {
	Stdin io.WriteCloser // the standard input of the child
	Pid   int

	proc   *process
	stdout *os.File

	readMu sync.Mutex
	unread []byte // bytes read from stdout that ReadLine has not returned
}

// SpawnChild runs the function registered under the name in a new process, with the given
// "NAME=value" pairs added to its environment. Its standard error is logged when the test ends.
func SpawnChild(t testing.TB, name string, env ...string) *Child {
	t.Helper()
	if children[name] == nil {
		t.Fatalf("no child named %q", name)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := tempDir("child")
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inR.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer outW.Close()

	// If TestMain does not call Main, the copy would run the tests and spawn copies without end.
	// The flag selects no tests.
	argv := []string{self, "-test.run=^$"}
	env = append(append(os.Environ(), env...), childVariable+"="+name)
	p, err := startProcess(argv, "", env, stdio{in: inR, out: outW, err: stderr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &Child{Stdin: inW, Pid: p.pid, proc: p, stdout: outR}
	t.Cleanup(func() {
		p.kill()
		inW.Close()
		outR.Close()
		if text, _ := os.ReadFile(stderr.Name()); len(text) > 0 {
			t.Logf("child %s, standard error:\n%s", name, text)
			// A child that is killed cannot report it by its exit code.
			if bytes.Contains(text, []byte("WARNING: DATA RACE")) {
				t.Errorf("data race in child %s", name)
			}
		}
		os.RemoveAll(dir)
	})
	return c
}

// ReadLine returns the next line that the child writes to its standard output, without the newline.
// It returns io.EOF when the child has exited or closed the output, and os.ErrDeadlineExceeded
// after the timeout. A line that was incomplete at the timeout is returned whole by a later call.
func (c *Child) ReadLine(timeout time.Duration) (string, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	if err := c.stdout.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	buffer := make([]byte, 4096)
	for {
		if line, rest, ok := bytes.Cut(c.unread, []byte("\n")); ok {
			c.unread = rest
			return string(line), nil
		}
		n, err := c.stdout.Read(buffer)
		c.unread = append(c.unread, buffer[:n]...)
		if err != nil && n == 0 {
			return "", err
		}
	}
}

// Kill ends the child with SIGKILL and waits until it has ended.
func (c *Child) Kill() { c.proc.kill() }

// Pause stops the child with SIGSTOP, like a long garbage collection or a suspended machine.
func (c *Child) Pause() { c.proc.pause() }

// Resume continues a paused child.
func (c *Child) Resume() { c.proc.resume() }

// Wait waits until the child has ended. It returns an error unless the exit code is 0.
func (c *Child) Wait() error {
	for c.proc.alive() {
		time.Sleep(2 * time.Millisecond)
	}
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	switch status := c.proc.status; {
	case status.Signaled():
		return fmt.Errorf("child ended by signal: %v", status.Signal())
	case status.ExitStatus() != 0:
		return fmt.Errorf("child exited with code %d", status.ExitStatus())
	}
	return nil
}
