package consistency

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// What the processes of a history have written down, put side by side.
//
// A row says which write its value is from, and each write noted which value it found. So the final
// rows show which writes were committed, and in which order. Each key of the caches must then
// behave like a register that was written in that order.

// history is all diaries, and the rows at the end.
type history struct {
	from   int64 // see monotonic
	writes map[string]*historyWrite
	reads  []historyRead
	stats  []historyStats
	final  [historyRows]registerRow
	chains [historyRows][]*historyWrite // of each row, those that were committed, by version; that of 0 is none
}

// historyWrite is a write, and what is known of its end.
type historyWrite struct {
	id                string
	begin, wrote, end int64 // wrote, end: 0, if it has not come to that
	outcome           outcome
	rows              []writtenRow
}

// readDiary adds what a process has written down. The half of a last line, whose process was
// killed, is left out.
func (h *history) readDiary(t *testing.T, name string) {
	f, err := os.Open(name)
	if os.IsNotExist(err) {
		return // it was killed before it began
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewReader(f)
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var l diaryLine
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		h.add(l)
	}
}

func (h *history) add(l diaryLine) {
	if h.writes == nil {
		h.writes = map[string]*historyWrite{}
	}
	switch w := h.writes[l.ID]; l.What {
	case "begin":
		h.writes[l.ID] = &historyWrite{id: l.ID, begin: l.At}
	case "wrote":
		w.wrote, w.rows = l.At, l.Rows
	case "end":
		w.end, w.outcome = l.At, l.Outcome
	case "read":
		h.reads = append(h.reads, *l.Read)
	case "stats":
		h.stats = append(h.stats, *l.Stats)
	}
}

// committed finds out which writes were committed, and asserts that no writer got a contradicting
// result.
func (h *history) committed(t *testing.T) {
	for row, last := range h.final {
		chain := make([]*historyWrite, last.Version+1)
		value := last.Value
		for v := last.Version; v > 0; v-- {
			w := h.writes[value]
			if w == nil {
				t.Fatalf("row %d, version %d: no write has this value", row, v)
			}
			i := slices.IndexFunc(w.rows, func(r writtenRow) bool { return r.Row == row && r.Version == v })
			if i < 0 {
				t.Fatalf("row %d, version %d: write %s has not", row, v, value)
			}
			if w.outcome == wasUndone {
				t.Errorf("row %d, version %d: write %s was committed, but its writer got an error that denies it",
					row, v, value)
			}
			chain[v], value = w, w.rows[i].Before
		}
		h.chains[row] = chain
	}
	for _, w := range h.writes {
		for _, r := range w.rows {
			chain := h.chains[r.Row]
			if there := r.Version < int64(len(chain)) && chain[r.Version] == w; !there &&
				(w.outcome == wasDone || w.outcome == wasQueued) {
				t.Errorf("row %d, version %d: write %s was not committed, but reported success", r.Row, r.Version, w.id)
			}
		}
	}
}

// report prints what has happened, and fails if that is too little.
func (h *history) report(t *testing.T) {
	var s historyStats
	for _, of := range h.stats {
		s.Failed += of.Failed
		s.Cache.Held += of.Cache.Held
		s.Cache.Refused += of.Cache.Refused
		s.Cache.RedisDown += of.Cache.RedisDown
		s.Writer.HoldsRefused += of.Writer.HoldsRefused
		s.Writer.HoldsLost += of.Writer.HoldsLost
		s.Writer.NotStored += of.Writer.NotStored
	}
	hits, ends := h.counts()
	late := 0
	for _, w := range h.writes {
		if w.wrote > 0 && w.late() {
			late++
		}
	}
	t.Logf("%d reads (%d failed), %d of them of what Redis had; %d writes: %v, and %d killed; %d took so long that a "+
		"hold may have ended before the COMMIT", len(h.reads), s.Failed, hits, len(h.writes), ends, ends[""], late)
	t.Logf("of those who lived to the end: %d loads were on hold, %d refused, %d without Redis; %d holds could not "+
		"be had, %d were lost; %d values were not stored",
		s.Cache.Held, s.Cache.Refused, s.Cache.RedisDown, s.Writer.HoldsRefused, s.Writer.HoldsLost, s.Writer.NotStored)
	if !h.enough() {
		t.Error("too little happened for a verdict")
	}
}

// counts are how many reads were of what Redis had, and how writes have ended.
func (h *history) counts() (hits int, ends map[outcome]int) {
	for _, r := range h.reads {
		if !r.Own {
			hits++
		}
	}
	ends = map[outcome]int{}
	for _, w := range h.writes {
		ends[w.outcome]++
	}
	return hits, ends
}

// enough reports whether the history has enough operations for a verdict.
func (h *history) enough() bool {
	hits, ends := h.counts()
	return hits >= 100 && ends[wasDone] >= 15
}

// historyKey is a key of the caches.
type historyKey struct {
	Loader string
	Row    int
}

func (h historyKey) compare(other historyKey) int {
	return cmp.Or(cmp.Compare(h.Loader, other.Loader), h.Row-other.Row)
}

// byKey sorts the reads by key, and asserts that they show what was committed.
func (h *history) byKey(t *testing.T) map[historyKey][]historyRead {
	all := map[historyKey][]historyRead{}
	for _, r := range h.reads {
		chain, v := h.chains[r.Row], r.Seen.Version
		if v < 0 || v >= int64(len(chain)) || v == 0 && r.Seen.Value != "" || v > 0 && chain[v].id != r.Seen.Value {
			t.Errorf("row %d, version %d: %q was read, and never committed", r.Row, v, r.Seen.Value)
			continue
		}
		key := historyKey{r.Loader, r.Row}
		all[key] = append(all[key], r)
	}
	return all
}

// checkStrict asserts that the reads of a key are linearizable.
//
// There is one thing that a hold cannot prevent. It is checked right before the COMMIT, but nothing
// stops a COMMIT that is sent, or about to be, when its process is stopped for longer than the hold
// lives, or its request delayed: then others may have cached the old row again, and serve it until
// it is invalidated; a process that cannot reach Redis just then reads the new one in the database,
// and another the old one after it. Reads that Redis has confirmed are linearizable even so. So if
// not all of them are, those that Redis may not have confirmed are left out where that may have
// happened.
func (h *history) checkStrict(t *testing.T, key historyKey, reads []historyRead) {
	chain := h.chains[key.Row]
	result := linearizable(chain, reads)
	if result == porcupine.Ok {
		return
	}
	old, backwards := rules(chain, reads)
	for _, s := range append(old, backwards...)[:min(3, len(old)+len(backwards))] {
		t.Logf("%v: %s", key, s.explain(chain, h.from))
	}
	confirmed := slices.DeleteFunc(slices.Clone(reads), func(r historyRead) bool { return r.Own && unheld(chain, r) })
	if again := linearizable(chain, confirmed); again != porcupine.Ok {
		t.Errorf("%v: %s; and without reads that Redis may not have confirmed: %s", key, result, again)
		return
	}
	t.Logf("%v: linearizable without %d reads that Redis may not have confirmed, and that overlap with COMMITs that "+
		"may have outlived their holds", key, len(reads)-len(confirmed))
}

// checkOutbox asserts that no read is older than a write whose success was reported before the read
// began. It returns how many other reads went back in time.
func (h *history) checkOutbox(t *testing.T, key historyKey, reads []historyRead) int {
	chain := h.chains[key.Row]
	old, backwards := rules(chain, reads)
	for _, s := range old {
		t.Errorf("%v: %s", key, s.explain(chain, h.from))
	}
	return len(backwards)
}

// late reports whether the write may have been committed after its hold expired.
func (h *historyWrite) late() bool {
	return h.end == 0 || h.end-h.wrote > int64(historyLease)
}

// unheld reports whether, during the read, a write of the key may have been committed without a
// hold and not been released.
func unheld(chain []*historyWrite, r historyRead) bool {
	for v, w := range chain {
		if w == nil || !w.late() {
			continue
		}
		until := w.end
		if w.end == 0 || w.outcome != wasDone { // until another write has ended what was cached, or for ever
			until = math.MaxInt64
			for _, next := range chain[v+1:] {
				if !next.late() && next.outcome == wasDone {
					until = min(until, next.end)
				}
			}
		}
		if r.Return >= w.wrote && r.Call <= until {
			return true
		}
	}
	return false
}

// historyModel is porcupine's model of one key: what is written is the version, which follows that
// before.
var historyModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, write, version any) (bool, any) {
		if write.(bool) {
			return state.(int64)+1 == version.(int64), version
		}
		return state == version, state
	},
}

// linearizable has porcupine check the operations of one key. A write that never reported success
// has no end.
func linearizable(chain []*historyWrite, reads []historyRead) porcupine.CheckResult {
	var ops []porcupine.Operation
	for v, w := range chain {
		if w == nil {
			continue
		}
		op := porcupine.Operation{ClientId: v, Input: true, Output: int64(v), Call: w.begin, Return: w.end}
		if w.end == 0 || w.outcome == wasUnknown || w.outcome == wasQueued && w.late() {
			op.Return = math.MaxInt64
		}
		ops = append(ops, op)
	}
	for n, r := range reads {
		ops = append(ops, porcupine.Operation{ClientId: len(chain) + n, Input: false, Output: r.Seen.Version,
			Call: r.Call, Return: r.Return})
	}
	return porcupine.CheckOperationsTimeout(historyModel, ops, time.Minute)
}

// stale is a read that returned an older value than one already reported or read.
type stale struct {
	read   historyRead
	newest int64        // that it could have been shown
	by     *historyRead // the read that had seen that; nil: the writer's success was reported
}

// rules finds reads that are too old: first those that began after the success of a newer write was
// reported, which is promise 2, and then those that began after another read returned something
// newer.
func rules(chain []*historyWrite, reads []historyRead) (old, backwards []stale) {
	type known struct {
		at, version int64
		by          *historyRead
	}
	var told, seen []known
	for v, w := range chain {
		if w != nil && w.outcome == wasDone {
			told = append(told, known{at: w.end, version: int64(v)})
		}
	}
	for i := range reads {
		seen = append(seen, known{reads[i].Return, reads[i].Seen.Version, &reads[i]})
	}
	find := func(all []known) (found []stale) {
		slices.SortFunc(all, func(a, b known) int { return int(a.at - b.at) })
		byCall := slices.SortedFunc(slices.Values(reads), func(a, b historyRead) int { return int(a.Call - b.Call) })
		newest, n := known{}, 0
		for _, r := range byCall {
			for ; n < len(all) && all[n].at < r.Call; n++ {
				if all[n].version > newest.version {
					newest = all[n]
				}
			}
			if r.Seen.Version < newest.version {
				found = append(found, stale{r, newest.version, newest.by})
			}
		}
		return found
	}
	return find(told), find(seen)
}

// explain says what is wrong with a read.
func (s stale) explain(chain []*historyWrite, from int64) string {
	at := func(t int64) string {
		if t == 0 {
			return "?"
		}
		return time.Duration(t - from).Round(10 * time.Microsecond).String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "version %d was read from %s to %s (own load: %v, loaded by %d at %s)", s.read.Seen.Version,
		at(s.read.Call), at(s.read.Return), s.read.Own, s.read.Seen.Process, at(s.read.Seen.Loaded))
	if s.by != nil {
		fmt.Fprintf(&b, ", after version %d was read from %s to %s (own load: %v, loaded by %d at %s)", s.newest,
			at(s.by.Call), at(s.by.Return), s.by.Own, s.by.Seen.Process, at(s.by.Seen.Loaded))
	}
	for v := s.read.Seen.Version; v <= min(s.newest+1, int64(len(chain))-1); v++ {
		if w := chain[v]; w != nil {
			fmt.Fprintf(&b, "\n\t%d by %s: begun %s, written %s, ended %s: %s, late: %v", v, w.id, at(w.begin),
				at(w.wrote), at(w.end), w.outcome, w.late())
		}
	}
	return b.String()
}

// TestHistoryChecker: a history is refused when it should be.
func TestHistoryChecker(t *testing.T) {
	const ms = int64(time.Millisecond)
	write := func(begin, wrote, end int64, o outcome) *historyWrite {
		return &historyWrite{begin: begin * ms, wrote: wrote * ms, end: end * ms, outcome: o}
	}
	read := func(version, call, end int64, own bool) historyRead {
		return historyRead{Seen: registerRow{Version: version}, Own: own, Call: call * ms, Return: end * ms}
	}
	late := write(100, 110, 2000, wasDone) // between the two the process was stopped
	for name, c := range map[string]struct {
		write          *historyWrite
		reads          []historyRead
		ok, excused    bool
		old, backwards int
	}{
		"either while it is written":  {write: write(100, 110, 120, wasDone), reads: []historyRead{read(0, 105, 118, false), read(1, 105, 116, true), read(1, 121, 130, false)}, ok: true},
		"old after the end":           {write: write(100, 110, 120, wasDone), reads: []historyRead{read(0, 121, 130, false)}, old: 1},
		"old after new":               {write: write(100, 110, 120, wasDone), reads: []historyRead{read(1, 101, 112, true), read(0, 113, 118, false)}, backwards: 1},
		"old after new, killed":       {write: write(100, 110, 0, ""), reads: []historyRead{read(1, 101, 112, false), read(0, 113, 118, false)}, backwards: 1},
		"never committed, it seems":   {write: write(100, 110, 120, wasUnknown), reads: []historyRead{read(0, 121, 130, false)}, ok: true},
		"new before it is written":    {write: write(100, 110, 120, wasDone), reads: []historyRead{read(1, 80, 90, false)}},
		"old after new, hold lost":    {write: late, reads: []historyRead{read(1, 1900, 1910, true), read(0, 1911, 1920, false)}, excused: true, backwards: 1},
		"the same, but confirmed":     {write: late, reads: []historyRead{read(1, 1900, 1910, false), read(0, 1911, 1920, false)}, backwards: 1},
		"old after the end, and late": {write: late, reads: []historyRead{read(0, 2001, 2010, true)}, old: 1},
	} {
		chain := []*historyWrite{nil, c.write}
		confirmed := slices.DeleteFunc(slices.Clone(c.reads),
			func(r historyRead) bool { return r.Own && unheld(chain, r) })
		old, backwards := rules(chain, c.reads)
		if ok, excused := linearizable(chain, c.reads) == porcupine.Ok, linearizable(chain,
			confirmed) == porcupine.Ok; ok != c.ok || excused != (c.ok || c.excused) || len(old) != c.old ||
			len(backwards) != c.backwards {
			t.Errorf("%s: linearizable %v, or excused %v, %d too old, %d backwards", name, ok, excused, len(old),
				len(backwards))
		}
	}
}
