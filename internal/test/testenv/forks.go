package testenv

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// children returns the ids of the child processes of a server whose children leave its process
// group. For other servers, and on systems other than Linux, it returns none.
func (p *process) children() (pids []int) {
	if !p.forks {
		return nil
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.pid))
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stopChildren stops a process whose children leave its process group, and then these children. It
// returns the ids of the children. A stopped process does not fork, and the system does not reuse
// the ids of its children.
func (p *process) stopChildren() []int {
	if !p.forks {
		return nil
	}
	syscall.Kill(p.pid, syscall.SIGSTOP)
	awaitState(p.pid, "TZ")
	children := p.children()
	for _, child := range children {
		syscall.Kill(child, syscall.SIGSTOP)
	}
	for _, child := range children {
		awaitState(child, "TZ")
	}
	return children
}

// awaitState waits until a process is in one of the states, such as T (stopped) and Z (has
// ended), or gone.
func awaitState(pid int, states string) {
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		// The state comes after the name in parentheses, which may contain anything.
		end := bytes.LastIndexByte(stat, ')')
		if err != nil || end < 0 || end+2 >= len(stat) || strings.IndexByte(states, stat[end+2]) >= 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
