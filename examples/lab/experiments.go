package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// absentAtOnce is the maximum number of concurrent reads of absent keys.
const absentAtOnce = 50

// stampede lets many callers, in all processes, read one cold row at the same time.
func (w *world) stampede(id int64, callers int) string {
	seen := w.db.spy(id)
	results := make([]readResult, callers)
	var ready, wg sync.WaitGroup
	start := make(chan struct{})
	ready.Add(callers)
	for i := range results {
		wg.Go(func() {
			ready.Done()
			<-start
			results[i] = w.read(i%processes, id)
		})
	}
	ready.Wait()
	close(start)
	wg.Wait()
	s := seen()
	slowest, failed := summary(results)
	text := fmt.Sprintf("%s of one cold row: %s", count(callers, "caller"), count(s.loads, "load"))
	if s.peak > 1 {
		text += fmt.Sprintf(", %s at once over %d connections", thousands(s.peak), connections)
	}
	text += ", the slowest caller " + milliseconds(slowest)
	if failed > 0 {
		text += ", " + count(failed, "error")
	}
	return text + "."
}

// sendAbsent reads many keys without a row, each twice.
func (w *world) sendAbsent(keys int) string {
	w.mu.Lock()
	first := w.absent
	w.absent += int64(keys)
	w.mu.Unlock()
	before, start := w.db.absentLoads(), time.Now()
	results := make([]readResult, 2*keys)
	var wg sync.WaitGroup
	for n := range absentAtOnce {
		wg.Go(func() {
			for i := n; i < len(results); i += absentAtOnce {
				results[i] = w.read(i%processes, first+int64(i%keys))
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	_, failed := summary(results)
	text := fmt.Sprintf("%s of %s that do not exist: %s, all done in %s", count(len(results), "read"),
		count(keys, "key"), count(w.db.absentLoads()-before, "load"), milliseconds(took))
	if failed > 0 {
		text += ", " + count(failed, "error")
	}
	return text + "."
}

// race stops a load that has read a row while the row is changed and invalidated, and then lets the
// load continue. It calls said with each step.
func (w *world) race(id int64, pause time.Duration, said func(string)) string {
	before := w.refused()
	h := w.db.hold(id)
	reader := make(chan readResult, 1)
	w.wg.Go(func() { reader <- w.readFor(2*pause+max(w.patience, 5*time.Second), 0, id) })
	select {
	case <-h.read:
	case a := <-reader:
		w.db.letGo(id, h)
		return fmt.Sprintf("No race: the reader came to an end before it had read the row (%s).", failure(a.err))
	}
	old := w.db.version(id)
	said(fmt.Sprintf("A load has read v%d, and is held.", old))
	_ = sleep(w.life, pause)
	version, err := w.write(1, id)
	if err != nil {
		w.db.letGo(id, h)
		<-reader
		return fmt.Sprintf("No race: the row could not be changed (%s).", failure(err))
	}
	said(fmt.Sprintf("A load has read v%d, and is held. v%d is written and invalidated.", old, version))
	_ = sleep(w.life, pause)
	w.db.letGo(id, h)
	a := <-reader

	text := fmt.Sprintf("A load that had read v%d was let go after v%d was written and invalidated: ", old, version)
	if a.err != nil {
		text += "its caller got an error (" + failure(a.err) + ")"
	} else {
		text += fmt.Sprintf("its caller got v%d", a.row.Version)
	}
	if n := w.refused() - before; n > 0 {
		text += fmt.Sprintf(", v%d was refused", old)
	}
	text += "; Redis holds "
	if r, ok := w.inRedis(id); ok {
		text += fmt.Sprintf("v%d", r.Version)
	} else {
		text += "nothing"
	}
	outdated := 0
	for p := range processes {
		if w.read(p, id).stale > 0 {
			outdated++
		}
	}
	return text + fmt.Sprintf("; then %d of %d processes read the old row.", outdated, processes)
}

// refused returns how many loaded values the library has discarded because of an invalidation.
func (w *world) refused() (n int64) {
	for _, p := range w.fleet {
		if p, ok := p.(*protected); ok {
			n += p.stats().Refused
		}
	}
	return n
}

func summary(results []readResult) (slowest time.Duration, failed int) {
	for _, a := range results {
		slowest = max(slowest, a.took)
		if a.err != nil && !errors.Is(a.err, errNoRow) {
			failed++
		}
	}
	return slowest, failed
}

// failure returns a short text for an error.
func failure(err error) string {
	for _, known := range []error{errDatabase, errNoConnection} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if err == nil {
		return "it was cached"
	}
	return "no reply in time"
}
