package torture

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// spreadChild keeps all keys in memory, polls the announced keys, and executes its own writes.
func spreadChild() {
	w := &worker{config: readConfig()}
	var err error
	if w.db, err = sql.Open("mysql", w.DSN); err != nil {
		panic(err)
	}
	w.db.SetMaxOpenConns(8)
	w.db.SetMaxIdleConns(8)
	rdb := w.client()
	w.loader, err = newFleetLoader(rdb, w.config, w.query,
		&cacheaside.LoaderOptions{TTL: 10 * time.Minute, MemoryTTL: 10 * time.Minute, LoadTimeout: testenv.Hang})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	_, n := spreadSize()
	all := rand.Perm(n)
	for keys := range slices.Chunk(all, 500) {
		if _, err := w.loader.GetMany(ctx, keys); err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	var mu sync.Mutex
	var wg sync.WaitGroup
	var report spreadReport
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			panic(err)
		}
		wg.Go(func() {
			s := w.poll(ctx, o)
			mu.Lock()
			defer mu.Unlock()
			report.Sights = append(report.Sights, s)
		})
	}
	wg.Wait()
	report.Sums = w.loader.sums()
	b, err := json.Marshal(report)
	if err == nil {
		err = os.WriteFile(w.File, b, 0o600)
	}
	if err != nil {
		panic(err)
	}
	fmt.Println("done")
	w.loader.close()
	rdb.Close()
	w.db.Close()
}

const (
	pollEvery   = time.Millisecond
	pollFrom    = time.Millisecond       // before the write
	pollPrecise = 10 * time.Millisecond  // after the write, the time between two polls grows
	pollOn      = 200 * time.Microsecond // after the new version, polls once more
)

// poll reads a key repeatedly, from shortly before its write until it sees the new version.
func (w *worker) poll(ctx context.Context, o order) sight {
	s := sight{Number: o.Number}
	if _, err := w.loader.Get(ctx, o.Key); err != nil { // fills memory
		s.Err = err.Error()
		return s
	}
	time.Sleep(time.Duration(o.At - history.Now() - int64(2*pollFrom)))
	nap(time.Duration(o.At - history.Now() - int64(pollFrom)))
	var wrote sync.WaitGroup
	var acked sight
	if o.Writer == w.Process {
		wrote.Go(func() { acked = w.announced(ctx, o) })
	}
	for limit := o.At + int64(testenv.Hang); ; {
		began := history.Now()
		got, err := w.loader.Get(ctx, o.Key)
		ended := history.Now()
		switch {
		case err != nil:
			s.Err = err.Error()
		case got.Version >= o.Version:
			s.FirstNew = ended
		default:
			s.LastOld = began
		}
		if s.FirstNew != 0 || s.Err != "" || began > limit {
			break
		}
		if since := time.Duration(began - o.At); since < pollPrecise {
			time.Sleep(pollEvery)
		} else {
			time.Sleep(since / 20)
		}
	}
	wrote.Wait()
	time.Sleep(pollOn)
	began := history.Now()
	if got, err := w.loader.Get(ctx, o.Key); err == nil && got.Version < o.Version {
		s.LastOld = began
	}
	s.Acked = acked.Acked
	if acked.Err != "" {
		s.Err = acked.Err
	}
	return s
}

// announced executes the write.
func (w *worker) announced(ctx context.Context, o order) (s sight) {
	nap(time.Duration(o.At - history.Now()))
	result, err := w.db.ExecContext(ctx, "UPDATE "+w.Table+" SET v = LAST_INSERT_ID(v + 1) WHERE id = ?", o.Key)
	if err == nil {
		var version int64
		if version, err = result.LastInsertId(); err == nil && version != o.Version {
			err = fmt.Errorf("wrote version %d, not %d", version, o.Version)
		}
	}
	if err == nil {
		err = w.loader.Invalidate(ctx, o.Key)
	}
	s.Acked = history.Now()
	if err != nil {
		s.Err = err.Error()
	}
	return s
}

// nap sleeps for less than a millisecond. The runtime's timers cannot do that in an idle process.
func nap(d time.Duration) {
	if d > 0 {
		t := syscall.NsecToTimespec(int64(d))
		syscall.Nanosleep(&t, nil) // a signal may shorten it, which is harmless
	}
}
