package groups

import (
	"slices"
	"testing"
)

const all = 1 << 60 // the hash of all groups in these tests

func record(group, number uint64) Record { return Record{Group: group, Number: number} }

func floorAt(number uint64) Record { return Record{Floor: true, Number: number} }

// mustRead reads records into a log, and returns the groups whose numbers have risen.
func (l *Log) mustRead(t *testing.T, records ...Record) []uint64 {
	t.Helper()
	var risen []uint64
	l.forget = func(group uint64) {
		if group != all {
			risen = append(risen, group)
		}
	}
	defer func() { l.forget = nil }()
	if !l.read(records) {
		t.Fatal("lost")
	}
	return risen
}

func (l *Log) check(t *testing.T, known uint64, want bool, hashes ...uint64) {
	t.Helper()
	if got := l.Current(known, SetOf(hashes...)); got != want {
		t.Errorf("groups %v, known %d: current is %v", hashes, known, got)
	}
}

func TestSet(t *testing.T) {
	s := SetOf(1, 1<<64-1)
	if s.Len() != 2 || s.Hash(0) != 1 || s.Hash(1) != 1<<64-1 || SetOf().Len() != 0 {
		t.Errorf("%x", []byte(s))
	}
	if string(s) != "\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff" { // it is in Redis
		t.Errorf("%x", []byte(s))
	}
}

func TestLog(t *testing.T) {
	l := Log{all: all}
	l.check(t, 1<<63, false) // not read so far
	if l.Last() != 0 {
		t.Errorf("last is %d", l.Last())
	}
	if risen := l.mustRead(t, floorAt(10), record(1, 20), record(2, 30)); !slices.Equal(risen, []uint64{1, 2}) ||
		l.Last() != 30 {
		t.Errorf("%v have risen, last is %d", risen, l.Last())
	}
	l.check(t, 9, false) // also without groups
	l.check(t, 10, true)
	l.check(t, 10, true, 3)
	l.check(t, 19, false, 1)
	l.check(t, 20, true, 1)
	l.check(t, 29, false, 1, 2)
	l.check(t, 29, false, 2, 1)
	l.check(t, 30, true, 1, 2)
	l.check(t, 29, false, all)
	l.check(t, 30, true, all)

	if risen := l.mustRead(t, record(2, 30)); len(risen) != 0 { // nothing new
		t.Errorf("%v have risen", risen)
	}
	if risen := l.mustRead(t, record(2, 30), record(1, 40)); !slices.Equal(risen, []uint64{1}) || l.Last() != 40 {
		t.Errorf("%v have risen, last is %d", risen, l.Last())
	}
	l.check(t, 39, false, 1)
	l.check(t, 39, true, 2)
	l.check(t, 39, false, all)
}

// The reply to an earlier read may arrive later.
func TestLateReply(t *testing.T) {
	l := Log{all: all}
	l.mustRead(t, floorAt(10), record(2, 30), record(1, 40))
	if risen := l.mustRead(t, floorAt(10), record(1, 20), record(2, 30)); len(risen) != 0 || l.Last() != 40 {
		t.Errorf("%v have risen, last is %d", risen, l.Last())
	}
	l.check(t, 39, false, 1)
}

// An announcement outdates the group, and does not hide earlier invalidations that are still
// unknown.
func TestAnnounced(t *testing.T) {
	l := Log{all: all}
	l.mustRead(t, floorAt(10))
	l.announced(1, 30)
	l.check(t, 29, false, 1)
	l.check(t, 29, false, all)
	l.check(t, 30, true, 1)
	if l.Last() != 10 {
		t.Errorf("last is %d, so the invalidation 20 would not be read", l.Last())
	}
	l.announced(1, 25) // late
	l.check(t, 29, false, 1)
	if risen := l.mustRead(t, floorAt(10), record(2, 20), record(1, 30)); !slices.Equal(risen, []uint64{2}) {
		t.Errorf("%v have risen", risen)
	}
	l.check(t, 19, false, 2)
}

// If Redis has lost the newest invalidation, it returns nothing, and then a floor.
func TestLost(t *testing.T) {
	l := Log{all: all}
	if l.read(nil) {
		t.Error("an empty set is no set")
	}
	l.mustRead(t, floorAt(10), record(1, 20))
	if ok := l.read(nil); ok || l.Last() != 20 {
		t.Errorf("%v, last is %d", ok, l.Last())
	}
	l.check(t, 20, true, 1)
	if risen := l.mustRead(t, floorAt(50)); len(risen) != 0 || l.Last() != 50 {
		t.Errorf("%v have risen, last is %d", risen, l.Last())
	}
	l.check(t, 49, false)
	l.check(t, 50, true, 1, 2, all)
	if len(l.numbers) != 0 {
		t.Errorf("%v are still known, and useless", l.numbers)
	}
	l.announced(1, 40) // late
	if len(l.numbers) != 0 {
		t.Errorf("%v are useless", l.numbers)
	}
	l.mustRead(t, floorAt(30), record(1, 60)) // the floor never falls
	l.check(t, 49, false)
}

// The log forgets the oldest numbers when there are many. What it does not know any more is
// outdated; new values are not.
func TestLogIsBounded(t *testing.T) {
	for name, add := range map[string]func(l *Log, group, number uint64){
		"read":      func(l *Log, group, number uint64) { l.read([]Record{record(group, number)}) },
		"announced": func(l *Log, group, number uint64) { l.announced(group, number) },
		"own":       func(l *Log, group, number uint64) { l.next(group) },
	} {
		l, most := &Log{all: all, last: 1}, 0
		const n = 3*Max + 10
		for i := uint64(2); i < n; i++ { // its number, and its group
			add(l, i, i)
			most = max(most, len(l.numbers))
		}
		if most > mostKnown || len(l.numbers) < Max {
			t.Errorf("%s: up to %d groups, then %d", name, most, len(l.numbers))
		}
		for i := uint64(2); i < n; i += 13 {
			if l.Current(i-1, SetOf(i)) {
				t.Fatalf("%s: the invalidation %d is forgotten", name, i)
			}
		}
		l.check(t, n-Max/2, true, 1) // a value that is not older than the last Max invalidations
		l.check(t, n-1, true, n-1, all)
	}
}

// A log without Redis numbers the invalidations itself.
func TestNext(t *testing.T) {
	l := Log{all: all, last: 1}
	known := l.Last()
	l.check(t, known, true, 1)
	l.next(1)
	l.check(t, known, false, 1)
	l.check(t, known, true, 2)
	l.check(t, l.Last(), true, 1)
	l.next(2)
	l.check(t, l.Last()-1, true, 1)
	l.check(t, l.Last()-1, false, 2)
	l.check(t, l.Last()-1, false, all)
}

// An invalidation outdates memory under the lock of the log. So a poll that finds the number in the
// log cannot return before memory is outdated.
func TestMemoryIsOutdatedUnderTheLock(t *testing.T) {
	calls := 0
	l := Log{all: all}
	l.forget = func(uint64) {
		calls++
		if l.mu.TryRLock() {
			l.mu.RUnlock()
			t.Error("the log is not locked")
		}
	}
	l.announced(1, 10)
	l.read([]Record{record(2, 20)})
	l.next(3)
	if calls != 6 {
		t.Errorf("%d calls", calls)
	}
}

// An entry that was loaded before the expiry of its group is current, and not fresh.
func TestExpiry(t *testing.T) {
	l := Log{all: all}
	l.mustRead(t, floorAt(10))
	l.announced(SetOf(1).Expiry().Hash(0), 20)
	l.announced(2, 30)
	for _, c := range []struct {
		known, group   uint64
		current, fresh bool
	}{{19, 1, true, false}, {20, 1, true, true}, {29, 2, false, true}, {19, 3, true, true}, {29, all, false, true}} {
		l.check(t, c.known, c.current, c.group)
		if got := l.Fresh(c.known, SetOf(c.group)); got != c.fresh {
			t.Errorf("group %d, known %d: fresh is %v", c.group, c.known, got)
		}
	}
	if l.Fresh(19, SetOf(3, 1)) || !l.Fresh(19, SetOf(3, 2)) || !l.Fresh(19, nil) {
		t.Error("one of several groups has expired")
	}
}
