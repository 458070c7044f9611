package torture

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/torture/internal/check"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// fleet is the processes of a run. A killed process is replaced by a new one with its own history.
type fleet struct {
	t      *testing.T
	config config // the same for all processes
	links  []*link
	places []*place

	mu        sync.Mutex
	files     []string // by process number
	suspended []check.Suspension
}

// place contains one process.
type place struct {
	sync.Mutex // while it is suspended or replaced
	number     int
	process    int
	child      *testenv.Child
}

// spawn starts a new process in a place. The caller holds the place's lock.
func (f *fleet) spawn(p *place) {
	f.mu.Lock()
	p.process = len(f.files)
	file := filepath.Join(f.t.TempDir(), fmt.Sprint("ops", p.process))
	f.files = append(f.files, file)
	f.mu.Unlock()
	for _, l := range f.links {
		if l.process == p.number && l.busy.Load() {
			l.open(f.t)
		}
	}
	c := f.config
	c.Process, c.Place, c.File, c.Proxies = p.process, p.number, file, proxiesOf(f.links, p.number)
	if p.number%2 == 1 {
		c.Lag = 0 // fast processes meet the gaps that slow ones leave
	}
	p.child = testenv.SpawnChild(f.t, "worker", c.environment())
	if line, err := p.child.ReadLine(testenv.Hang); err != nil || line != "ready" {
		f.t.Errorf("process %d: %q, %v", p.process, line, err)
	}
}

func (f *fleet) start(processes int) {
	for n := range processes {
		p := &place{number: n}
		f.places = append(f.places, p)
		p.Lock()
		f.spawn(p)
		p.Unlock()
	}
}

// replace kills the process of a place and starts another one there.
func (f *fleet) replace(p *place, gone time.Duration) {
	p.Lock()
	defer p.Unlock()
	p.child.Kill()
	time.Sleep(gone)
	f.spawn(p)
}

// suspend stops a process with a signal for the time d.
func (f *fleet) suspend(p *place, d time.Duration) {
	p.Lock()
	defer p.Unlock()
	from := history.Now()
	p.child.Pause()
	time.Sleep(d)
	p.child.Resume()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended = append(f.suspended,
		check.Suspension{Process: p.process, Window: check.Window{From: from, To: history.Now()}})
}

// finish stops all processes, and returns their reports and operations.
func (f *fleet) finish() (reports []workerReport, ops []history.Op) {
	for _, p := range f.places {
		p.child.Stdin.Write([]byte("stop\n"))
	}
	for _, p := range f.places {
		line, err := p.child.ReadLine(2 * testenv.Hang)
		var r workerReport
		if err == nil {
			err = json.Unmarshal([]byte(line), &r)
		}
		if err != nil {
			f.t.Errorf("no report of process %d: %v", p.process, err)
			r.Hung++
		}
		reports = append(reports, r)
		p.child.Kill()
	}
	for process, file := range f.files {
		var err error
		if ops, err = history.Read(ops, file, process); err != nil {
			f.t.Fatal(err)
		}
		os.Remove(file)
	}
	return reports, ops
}
