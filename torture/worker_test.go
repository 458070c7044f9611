package torture

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/goleak"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

func init() { testenv.RegisterChild("worker", workerChild) }

const workerGoroutines = 10

// workerReport is the final report of a process.
type workerReport struct {
	Hung   int    // goroutines with an operation that did not end
	Leaked string // goroutines that were left after everything was closed
	Sums   map[string]int64
}

// worker is one process of the fleet.
type worker struct {
	*config
	db      *sql.DB
	loader  *fleetLoader
	record  *history.Writer
	tokens  *tokens
	wide    *wide         // nil except in the wide mix
	stop    chan struct{} // closed when no further operation may begin
	stopped atomic.Int64  // the time of that
}

// workerChild reads, writes and invalidates until it receives a line on standard input. Then it
// closes everything and reports.
func workerChild() {
	idle := goleak.IgnoreCurrent()
	w := &worker{config: readConfig(), stop: make(chan struct{})}
	var err error
	if w.record, err = history.Create(w.File); err != nil {
		panic(err)
	}
	if w.db, err = sql.Open("mysql", w.DSN); err != nil {
		panic(err)
	}
	if w.tokens, err = w.listenForTokens(); err != nil {
		panic(err)
	}
	w.db.SetMaxOpenConns(12)
	w.db.SetMaxIdleConns(12)
	rdb := w.client()
	w.loader, err = newFleetLoader(rdb, w.config, w.load, w.loaderOptions())
	if err != nil {
		panic(err)
	}
	if w.Wide {
		if w.wide, err = newWide(w); err != nil {
			panic(err)
		}
	}
	var running atomic.Int64
	var wg sync.WaitGroup
	for g := range workerGoroutines {
		running.Add(1)
		wg.Go(func() {
			defer running.Add(-1)
			w.run(g, rand.New(rand.NewPCG(w.Seed, uint64(w.Process*workerGoroutines+g))))
		})
	}
	running.Add(1)
	wg.Go(func() {
		defer running.Add(-1)
		w.receiveTokens(rand.New(rand.NewPCG(w.Seed, uint64(1000+w.Process))))
	})
	fmt.Println("ready")
	bufio.NewScanner(os.Stdin).Scan()
	w.stopped.Store(history.Now())
	close(w.stop)
	w.tokens.socket.SetReadDeadline(time.Now())

	report := workerReport{}
	ended := make(chan struct{})
	go func() { wg.Wait(); w.close(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(testenv.Hang):
		report.Hung = max(1, int(running.Load())) // one if Close hangs
		pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
	report.Sums = w.loader.sums()
	rdb.Close()
	w.db.Close()
	w.record.Close()
	w.tokens.socket.Close()
	if report.Hung == 0 {
		// A go-redis pool that could not connect retries once a second until it notices that it is
		// closed.
		dials := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
		if err := testenv.Leaks(idle, dials); err != nil {
			report.Leaked = err.Error()
		}
	}
	json.NewEncoder(os.Stdout).Encode(report)
}

// close closes the library's objects of the process.
func (w *worker) close() {
	if w.wide != nil {
		w.wide.writer.Close()
	}
	w.loader.close()
}

// stopping reports whether the process must stop, and for how long already.
func (w *worker) stopping() (since time.Duration, yes bool) {
	at := w.stopped.Load()
	if at == 0 {
		return 0, false
	}
	return time.Duration(history.Now() - at), true
}
