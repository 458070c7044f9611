package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// reaperScript runs in a shell, the reaper. Its standard input is a pipe that the test process
// holds open. When that process ends, for any reason, the pipe closes. Then the shell kills all
// processes that it watches and removes the temporary folder. It has its own process group, so that
// Ctrl-C does not end it.
const reaperScript = `
trap '' HUP INT TERM
pids=' '
while read -r verb pid; do
	case $verb in
	watch) pids="$pids$pid " ;;
	forget) case $pids in *" $pid "*) pids="${pids%% $pid *} ${pids#* $pid }" ;; esac ;;
	esac
done
for pid in $pids; do
	forked=$(cat "/proc/$pid/task/$pid/children") # some have groups of their own, and may be stopped
	kill -KILL "-$pid" || kill -KILL "$pid"
	for child in $forked; do kill -KILL "$child"; done
done
rm -rf "$1"
# A process may have written a last file while it was dying.
sleep 0.2
rm -rf "$1"
`

// watchedScript reports its own process id to the reaper (file descriptor 3) and then executes the
// program. So the program never runs without the reaper's knowledge: until the report is written,
// the descriptor keeps the reaper's input open.
const watchedScript = `echo "watch $$" >&3; exec 3>&-; exec "$@"`

type reaper struct {
	input *os.File
	cmd   *exec.Cmd
	dir   string
	live  map[*process]bool
}

var (
	reaperMu sync.Mutex
	current  *reaper // nil until the first process or folder is created
)

// theReaper returns the reaper, and starts it if necessary. The caller holds reaperMu.
func theReaper() (*reaper, error) {
	if current != nil {
		return current, nil
	}
	dir, err := os.MkdirTemp("", "testenv-")
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", reaperScript, "reaper", dir)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		os.RemoveAll(dir)
		return nil, fmt.Errorf("start the reaper: %w", err)
	}
	current = &reaper{input: w, cmd: cmd, dir: dir, live: map[*process]bool{}}
	return current, nil
}

// forget removes p from the processes that the reaper kills. It must be called before the system
// can reuse the process id.
func forget(p *process) {
	reaperMu.Lock()
	defer reaperMu.Unlock()
	if current != nil && current.live[p] {
		delete(current.live, p)
		fmt.Fprintf(current.input, "forget %d\n", p.pid)
	}
}

// stopAll kills all processes, removes the temporary folder, and ends the reaper.
func stopAll() {
	reaperMu.Lock()
	var live []*process
	if current != nil {
		for p := range current.live {
			live = append(live, p)
		}
	}
	reaperMu.Unlock()
	for _, p := range live {
		p.kill()
	}

	reaperMu.Lock()
	defer reaperMu.Unlock()
	if current == nil {
		return
	}
	os.RemoveAll(current.dir)
	dismiss()
}

// stopIdle ends the reaper if no process runs and the temporary folder is empty.
func stopIdle() {
	reaperMu.Lock()
	defer reaperMu.Unlock()
	if current == nil || len(current.live) > 0 {
		return
	}
	if os.Remove(current.dir) == nil { // it was empty
		dismiss()
	}
}

// dismiss ends the reaper. The folder has been removed, so the reaper has nothing left to do. The
// reaper sleeps before it removes the folder a second time, so dismiss does not wait for it. The
// caller holds reaperMu.
func dismiss() {
	current.input.Close()
	current.cmd.Process.Release()
	current = nil
}

// tempDir creates a folder that is removed when the test process ends.
func tempDir(name string) (string, error) {
	reaperMu.Lock()
	defer reaperMu.Unlock()
	r, err := theReaper()
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(r.dir, name+"-")
}
