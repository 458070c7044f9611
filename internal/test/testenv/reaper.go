package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// The reaper is a shell whose standard input is a pipe held open by the test
// process. However that process ends, the pipe closes, and the shell kills every
// process it was told to watch and removes the temporary folder. It lives in a
// process group of its own so that a Ctrl-C leaves it running.
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
	kill -KILL "-$pid" || kill -KILL "$pid"
done
rm -rf "$1"
# A process may have written a last file while it was dying.
sleep 0.2
rm -rf "$1"
`

// watchedScript reports its own process id to the reaper (file descriptor 3) and
// becomes the wanted program. So there is no moment at which the program runs and
// the reaper does not know it: as long as the report is not made, the descriptor
// keeps the reaper's input open.
const watchedScript = `echo "watch $$" >&3; exec 3>&-; exec "$@"`

type reaper struct {
	input *os.File
	cmd   *exec.Cmd
	dir   string
	live  map[*process]bool
}

var (
	reaperMu sync.Mutex
	current  *reaper // nil until the first process or folder is wanted
)

// theReaper starts the reaper if needed. The caller holds reaperMu.
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

// forget tells the reaper that p needs no killing any more. It must be called
// before the process id can be given to another process.
func forget(p *process) {
	reaperMu.Lock()
	defer reaperMu.Unlock()
	if current != nil && current.live[p] {
		delete(current.live, p)
		fmt.Fprintf(current.input, "forget %d\n", p.pid)
	}
}

// stopAll kills everything that was started and removes the temporary folder.
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

// stopIdle ends the reaper if nothing is left for it to watch or to remove.
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

// dismiss ends the reaper. With the folder gone it has nothing left to do; it is
// not waited for, because it sleeps before it looks at the folder a second time.
// The caller holds reaperMu.
func dismiss() {
	current.input.Close()
	current.cmd.Process.Release()
	current = nil
}

// tempDir makes a folder that is removed at the end of the test process.
func tempDir(name string) (string, error) {
	reaperMu.Lock()
	defer reaperMu.Unlock()
	r, err := theReaper()
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(r.dir, name+"-")
}
