package testenv

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// A process is a program that the test process runs and the reaper watches. No goroutine waits for
// its end, so that a test can check for leaked goroutines while servers run.
type process struct {
	pid   int
	forks bool // its children leave its process group, and are signalled one by one

	mu     sync.Mutex
	exited bool
	status syscall.WaitStatus
}

// stdio holds the standard files of a process. nil is /dev/null.
type stdio struct {
	in, out, err *os.File
}

// startProcess runs a program, as another user unless user is nil.
func startProcess(argv []string, dir string, env []string, files stdio, user *syscall.Credential) (*process, error) {
	reaperMu.Lock()
	defer reaperMu.Unlock()
	r, err := theReaper()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("sh", append([]string{"-c", watchedScript, "sh"}, argv...)...)
	cmd.Dir = dir
	cmd.Env = env
	cmd.ExtraFiles = []*os.File{r.input}
	// With its own process group, a Ctrl-C at the terminal reaches only the test process, and a
	// kill also reaches processes that the program has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: user}
	// A nil *os.File in an interface does not equal nil.
	if files.in != nil {
		cmd.Stdin = files.in
	}
	if files.out != nil {
		cmd.Stdout = files.out
	}
	if files.err != nil {
		cmd.Stderr = files.err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid}
	cmd.Process.Release() // process.wait calls wait4 itself
	r.live[p] = true
	return p, nil
}

// wait calls wait4 on the process. The caller holds p.mu.
func (p *process) wait(options int) {
	for {
		pid, err := syscall.Wait4(p.pid, &p.status, options, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || (pid == p.pid && !p.status.Stopped()) {
			p.exited = true
		}
		return
	}
}

// alive reports whether the process still runs.
func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited {
		return false
	}
	p.wait(syscall.WNOHANG)
	if p.exited {
		forget(p)
	}
	return !p.exited
}

// kill ends the process with SIGKILL and waits until it has ended.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited {
		return
	}
	children := p.stopChildren()
	for _, child := range children {
		syscall.Kill(child, syscall.SIGKILL)
	}
	syscall.Kill(-p.pid, syscall.SIGKILL)
	forget(p)
	p.wait(0)
	for _, child := range children {
		awaitState(child, "Z")
	}
}

// pause stops the process with SIGSTOP and returns when it has stopped.
func (p *process) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited {
		return
	}
	syscall.Kill(p.pid, syscall.SIGSTOP)
	p.wait(syscall.WUNTRACED)
	p.stopChildren()
}

// resume undoes pause.
func (p *process) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited {
		return
	}
	for _, child := range p.children() {
		syscall.Kill(child, syscall.SIGCONT)
	}
	syscall.Kill(p.pid, syscall.SIGCONT)
}
