package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startLimit is how long a server may take until it accepts commands. A second is enough unless
// the machine is overloaded.
const startLimit = 2 * time.Minute

// A server is a process that listens on a port and can be restarted on the same port.
type server struct {
	name  string
	port  int
	dir   string
	argv  []string
	ready func() error        // returns nil when this process, and not another one, serves the port
	user  *syscall.Credential // nil: that of the test process
	forks bool                // its children leave its process group

	mu   sync.Mutex
	proc *process
}

// startServer calls launch, and ends the test if that fails.
func startServer(t testing.TB, name string, build func(s *server)) *server {
	t.Helper()
	s, err := launch(context.Background(), name, func(s *server) error { build(s); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// launch runs a server on a free port. On systems where ports cannot be reserved, another process
// may take the port first. So if the start fails, launch tries up to two more ports. ctx limits
// the start only.
func launch(ctx context.Context, name string, build func(s *server) error) (*server, error) {
	for attempt := 1; ; attempt++ {
		dir, err := tempDir(name)
		if err != nil {
			return nil, err
		}
		s := &server{name: name, dir: dir}
		started := false
		if s.port, err = freePort(); err == nil {
			err = build(s)
		}
		if err == nil {
			started = true
			err = s.start(ctx)
		}
		if err == nil {
			return s, nil
		}
		s.Kill()
		os.RemoveAll(dir)
		if !started || attempt == 3 || ctx.Err() != nil {
			return nil, err
		}
	}
}

func (s *server) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

func (s *server) start(ctx context.Context) error {
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	p, err := startProcess(s.argv, s.dir, nil, stdio{out: log, err: log}, s.user)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	p.forks = s.forks
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()

	deadline := time.Now().Add(startLimit)
	for {
		if err = s.ready(); err == nil {
			return nil
		}
		if !p.alive() {
			return fmt.Errorf("%s ended at start: %s", s.name, s.logTail())
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %v: %w: %s", s.name, startLimit, err, s.logTail())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *server) logTail() string {
	log, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-2000):])
}

func (s *server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

func (s *server) alive() bool { return s.process().alive() }

// Pid returns the process id of the server.
func (s *server) Pid() int { return s.process().pid }

// Pause stops the server with SIGSTOP: connections stay open but receive no replies.
func (s *server) Pause() { s.process().pause() }

// Resume continues a paused server.
func (s *server) Resume() { s.process().resume() }

// Kill ends the server with SIGKILL.
func (s *server) Kill() {
	if p := s.process(); p != nil {
		p.kill()
	}
}

// Restart kills the server, if it still runs, and starts it again on the same port with the same
// arguments.
func (s *server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	if err := s.start(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// revive resumes or restarts a server that a test has paused or killed.
func (s *server) revive(t testing.TB) {
	t.Helper()
	s.Resume()
	if !s.alive() {
		s.Restart(t)
	}
}

// claim kills the server and removes its files when the test ends.
func (s *server) claim(t testing.TB) {
	t.Cleanup(func() {
		s.Kill()
		os.RemoveAll(s.dir)
	})
}

// A shared value is created on first use and then used by all tests of the process.
type shared[T any] struct {
	mu    sync.Mutex
	value *T
}

// get returns the value. It creates a new one with start if there is none, or if good returns
// false.
func (s *shared[T]) get(good func(*T) bool, start func() *T) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value != nil && !good(s.value) {
		s.value = nil
	}
	if s.value == nil {
		s.value = start()
	}
	return s.value
}

// program returns the path of a program. If it is not installed, the test is skipped; in continuous
// integration (CI=true) it fails.
func program(t testing.TB, name, debianPackage string) string {
	t.Helper()
	path, err := lookup(name, debianPackage)
	if err != nil {
		missing(t, name, debianPackage)
	}
	return path
}

// HasRedis reports whether redis-server is installed.
func HasRedis() bool {
	_, err := lookup("redis-server", "redis-server")
	return err == nil
}

// lookup returns the path of a program, or an error that names the Debian package to install.
func lookup(name, debianPackage string) (path string, err error) {
	path, err = exec.LookPath(name)
	if err != nil { // servers are often outside the PATH of an ordinary user
		path, err = exec.LookPath(filepath.Join("/usr/sbin", name))
	}
	if err != nil {
		return "", fmt.Errorf("%s is not installed: install the package %s", name, debianPackage)
	}
	return path, nil
}

func missing(t testing.TB, program, debianPackage string) {
	t.Helper()
	skip(t, fmt.Sprintf("%s is not installed: install the package %s, as `make test` does", program, debianPackage))
}

// skip skips the test, or fails it in continuous integration.
func skip(t testing.TB, message string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(message)
	}
	t.Skip(message)
}
