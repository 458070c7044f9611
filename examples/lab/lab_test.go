package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// testLab is a served lab with a viewer.
type testLab struct {
	lab    *lab
	server *httptest.Server
	client *http.Client
	stream *bufio.Scanner
}

// startLab serves a lab with short measurements, in which no caller loses patience on a busy
// machine.
func startLab(t *testing.T, change ...func(*config)) *testLab {
	t.Helper()
	c := config{window: 100 * time.Millisecond, pause: 10 * time.Millisecond, frame: 60 * time.Millisecond,
		patience: testenv.Hang, connect: testenv.Hang, ttl: ttl, redis: testenv.Hang, reads: 60, crowd: crowd}
	for _, f := range change {
		f(&c)
	}
	l, err := newLab(c)
	if err != nil {
		t.Fatal(err)
	}
	tl := &testLab{lab: l, server: httptest.NewServer(l.handler()), client: &http.Client{}}
	t.Cleanup(func() {
		tl.client.CloseIdleConnections()
		l.stop()
		tl.server.Close()
		start := time.Now()
		l.close()
		if took := time.Since(start); took > testenv.Hang/2 {
			t.Errorf("closing takes %v: it waits for callers or Redis", took)
		}
	})
	return tl
}

// look starts to read frames.
func (l *testLab) look(t *testing.T) {
	t.Helper()
	response, err := l.client.Get(l.server.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("frames are %q", kind)
	}
	l.stream = bufio.NewScanner(response.Body)
	l.stream.Buffer(nil, 1<<20)
}

// until reads frames until good accepts one.
func (l *testLab) until(t *testing.T, what string, good func(frame) bool) frame {
	t.Helper()
	var last frame
	for deadline := time.Now().Add(testenv.Hang); time.Now().Before(deadline) && l.stream.Scan(); {
		data, ok := bytes.CutPrefix(l.stream.Bytes(), []byte("data: {"))
		if !ok { // the history is an array
			continue
		}
		last = frame{}
		if err := json.Unmarshal(append([]byte("{"), data...), &last); err != nil {
			t.Fatal(err)
		}
		if good(last) {
			return last
		}
	}
	t.Fatalf("no frame with %s (%v); the last one: %+v", what, l.stream.Err(), last)
	return last
}

// throw uses a switch, and returns the line that each world logs about it in the frames.
func (l *testLab) throw(t *testing.T, name, order string) (protected, plain string) {
	t.Helper()
	start := time.Now()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.server.URL+"/switch/"+name,
		strings.NewReader(order))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Origin", l.server.URL)
	request.Header.Set("Content-Type", "application/json")
	response, err := l.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s", name, order, response.Status, body)
	}
	var out outcome
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatal(err)
	}
	shows := func(s scene, text string) bool {
		for _, e := range s.Log {
			if e.Switch == name && e.Done && e.Text == text {
				return true
			}
		}
		return false
	}
	l.until(t, "the line of "+name,
		func(f frame) bool { return shows(f.Protected, out.Protected) && shows(f.Plain, out.Plain) })
	t.Logf("%s %s (%v)\n  protected: %s\n  plain:     %s", name, order, time.Since(start).Round(time.Millisecond),
		out.Protected, out.Plain)
	return out.Protected, out.Plain
}

// number finds a number in a line.
func number(t *testing.T, text, re string) int {
	t.Helper()
	found := regexp.MustCompile(re).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("%q has no %s", text, re)
	}
	n, err := strconv.Atoi(strings.ReplaceAll(found[1], ",", ""))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// crowd is the number of callers in an experiment. It is smaller under the race detector, which
// slows down the interpreted scripts of the embedded Redis.
const crowd = 1000 - 800*race

const (
	loadsOf  = `([\d,]+) loads?\b`
	errorsOf = `([\d,]+) errors?\b`
	oldIn    = `then (\d) of 4 processes read the old row`
)

// TestSwitches uses each switch, and checks its effect on both worlds in the frames.
func TestSwitches(t *testing.T) {
	l := startLab(t)
	l.look(t)
	l.until(t, "rows in memory everywhere",
		func(f frame) bool { return known(f.Protected.Watched[0]) && known(f.Plain.Watched[0]) })

	t.Run("stampede", func(t *testing.T) {
		if plain := l.stampede(t); number(t, plain, loadsOf) < 2 {
			t.Error("plain makes one load, want more")
		}
		l.until(t, "the row of the stampede", func(f frame) bool {
			return f.Protected.Watched[4].Redis.Version == 1 && f.Plain.Watched[4].Redis.Version == 1
		})
	})
	t.Run("race", func(t *testing.T) {
		protected, plain := l.throw(t, "race", `{}`)
		if number(t, protected, oldIn) != 0 ||
			!strings.Contains(protected, "its caller got v2, v1 was refused; Redis holds v2") {
			t.Error("protected does not refuse the old row")
		}
		if number(t, plain, oldIn) != processes || !strings.Contains(plain, "its caller got v1; Redis holds v1") {
			t.Error("plain does not keep the old row")
		}
		f := l.until(t, "the row of the race",
			func(f frame) bool { return f.Plain.Watched[3].Redis.Stale && known(f.Plain.Watched[3]) })
		for _, s := range append(f.Protected.Watched[3].Memory[:], f.Protected.Watched[3].Redis) {
			if s.Stale || s.Version != 2 {
				t.Errorf("protected has %+v", f.Protected.Watched[3])
			}
		}
		if f.Plain.Stale < processes || f.Plain.OldestMs <= 0 {
			t.Errorf("%d stale values in plain", f.Plain.Stale)
		}
	})
	t.Run("absent", func(t *testing.T) {
		protected, plain := l.throw(t, "absent", `{}`)
		if number(t, protected, loadsOf) > crowd/10 || number(t, plain, loadsOf) != 2*crowd {
			t.Error("want protected to refuse nearly all reads, and plain none")
		}
	})
	t.Run("database fails", func(t *testing.T) {
		l.throw(t, "traffic", `{"reads":60,"writes":0}`)
		testenv.Eventually(t, "the last write",
			func() bool { return l.lab.protected.writing.Load() == 0 && l.lab.plain.writing.Load() == 0 })
		l.warm()
		l.throw(t, "fail", `{"on":true}`)
		was := l.frame(t)
		l.throw(t, "expire", `{}`)
		is := l.frame(t)
		// A few reads from before the rows expired may be counted now.
		then := l.until(t, "reads after all rows have expired", func(f frame) bool {
			return f.Plain.Reads > is.Plain.Reads+100 && f.Protected.Reads > is.Protected.Reads+100
		})
		l.noErrors(t, was, then)
		if errors, reads := then.Plain.Errors-is.Plain.Errors, then.Plain.Reads-is.Plain.Reads; 2*errors < reads {
			t.Errorf("%d errors in %d reads of plain, which has no values to serve", errors, reads)
		}
		before := l.frame(t)
		if _, plain := l.throw(t, "race", `{}`); !strings.HasPrefix(plain, "No race") {
			t.Error("a race runs without a row")
		}
		after := l.until(t, "a frame", func(f frame) bool { return f.At > before.At })
		if after.Plain.Watched[0].Database != before.Plain.Watched[0].Database {
			t.Error("a failing database was changed")
		}
		l.throw(t, "fail", `{"on":false}`)
		l.throw(t, "traffic", `{"reads":60,"writes":5}`)
	})
	t.Run("bus", func(t *testing.T) {
		l.throw(t, "bus", `{"on":true,"process":2}`)
		l.until(t, "an empty memory of process 2, and no other", func(f frame) bool {
			m := f.Protected.Watched[0].Memory
			return f.State.Cut == [processes]bool{1: true} && m[1].Version == 0 && m[0].Version > 0 &&
				m[2].Version > 0 && m[3].Version > 0
		})
		l.throw(t, "bus", `{"on":false,"process":2}`)
		l.until(t, "memory of process 2",
			func(f frame) bool { return !f.State.Cut[1] && f.Protected.Watched[0].Memory[1].Version > 0 })
	})
	t.Run("flush", func(t *testing.T) {
		testenv.Eventually(t, "a flush after which Redis is filled again, if there are reads in the time that is "+
			"measured", func() bool {
			protected, plain := l.throw(t, "flush", `{}`)
			return number(t, protected, loadsOf) > 0 && number(t, plain, loadsOf) > 0
		})
	})
	t.Run("traffic", func(t *testing.T) {
		l.throw(t, "traffic", `{"reads":0,"writes":0}`)
		l.until(t, "no reads", func(
			f frame) bool {
			return f.State.Reads == 0 && f.Protected.Now.Reads == 0 && f.Plain.Now.Reads == 0
		})
		l.throw(t, "traffic", `{"reads":60,"writes":5}`)
		l.until(t, "reads", func(f frame) bool { return f.Protected.Now.Reads > 20 && f.Plain.Now.Reads > 20 })
	})
	l.notOverdue(t)
}

// TestRedisFails kills and freezes Redis in a lab with the usual timeouts of protected. Callers
// would wait much longer, but those of protected need not. There are few callers, because all those
// of plain continue at once when Redis is thawed.
func TestRedisFails(t *testing.T) {
	l := startLab(t, func(c *config) {
		c.redis, c.patience, c.reads, c.ttl = usual.redis, 8*time.Second, 50, time.Hour
	})
	l.look(t)
	l.until(t, "rows in memory everywhere",
		func(f frame) bool { return known(f.Protected.Watched[0]) && known(f.Plain.Watched[0]) })
	t.Run("kill", func(t *testing.T) {
		// A write before the kill would delete its row from Redis.
		l.throw(t, "traffic", `{"reads":50,"writes":0}`)
		before := l.until(t, "rows in Redis", func(f frame) bool { return f.State.Writes == 0 && allInRedis(f.Plain) })
		l.throw(t, "kill", `{"on":true}`)
		l.throw(t, "traffic", `{"reads":50,"writes":100}`)
		f := l.until(t, "memory of protected that is not trusted, invalidations that wait, and none in plain",
			func(f frame) bool {
				return f.State.Killed && empty(f.Protected.Watched[0]) && f.Protected.Pending > 0 &&
					f.Plain.Pending == 0
			})
		l.noErrors(t, before, f)
		l.throw(t, "traffic", `{"reads":50,"writes":0}`)
		l.until(t, "old rows in the Redis of plain, which nobody can reach",
			func(f frame) bool { return anyOld(f.Plain) })
		l.throw(t, "kill", `{"on":false}`)
		f = l.until(t, "all invalidations of protected", func(f frame) bool {
			return !f.State.Killed && f.Protected.Pending == 0 && known(f.Protected.Watched[0])
		})
		if anyOld(f.Protected) {
			t.Errorf("old rows in protected: %+v", f.Protected.Watched)
		}
		l.throw(t, "traffic", `{"reads":50,"writes":5}`)
	})
	t.Run("freeze", func(t *testing.T) {
		before := l.frame(t)
		l.throw(t, "freeze", `{"on":true}`)
		f := l.until(t, "errors in plain",
			func(f frame) bool { return f.State.Frozen && f.Plain.Errors > before.Plain.Errors })
		l.noErrors(t, before, f)
		l.throw(t, "freeze", `{"on":false}`)
		l.until(t, "memory of protected", func(f frame) bool { return known(f.Protected.Watched[0]) })
	})
	l.notOverdue(t)
}

// TestSlowDatabase makes plain run out of connections.
func TestSlowDatabase(t *testing.T) {
	// Enough while at most one other query of the crowd is ahead.
	l := startLab(t, func(c *config) { c.connect = slowLatency * 3 / 2 })
	l.look(t)
	l.throw(t, "slow", `{"on":true}`)
	// Some callers of plain leave without a value. On a busy machine the callers may arrive one
	// after another and find the value of the first load. Then the test sends another crowd.
	testenv.Eventually(t, "plain, with queries of 500 ms, runs out of connections", func() bool {
		plain := l.stampede(t)
		return regexp.MustCompile(errorsOf).MatchString(plain) && number(t, plain, `slowest caller ([\d,]+) ms`) >= 500
	})
	l.throw(t, "slow", `{"on":false}`)
	f := l.until(t, "a fast database", func(f frame) bool { return !f.State.Slow })
	if f.State.Killed || f.State.Frozen || f.State.Failing {
		t.Errorf("%+v", f.State)
	}
}

// frame returns the next frame.
func (l *testLab) frame(t *testing.T) frame {
	t.Helper()
	return l.until(t, "a frame", func(frame) bool { return true })
}

func (l *testLab) notOverdue(t *testing.T) {
	t.Helper()
	f := l.frame(t)
	if f.Protected.Overdue != 0 {
		t.Errorf("%d values in protected were stale for longer than MaxStaleness", f.Protected.Overdue)
	}
}

// TestProtections turns each protection off and on, and checks those with an immediate effect.
func TestProtections(t *testing.T) {
	l := startLab(t)
	l.look(t)
	off := func(name string) { l.throw(t, "protection", `{"name":"`+name+`","on":false}`) }
	on := func(name string) { l.throw(t, "protection", `{"name":"`+name+`","on":true}`) }

	off(filter)
	if protected, _ := l.throw(t, "absent", `{}`); number(t, protected, loadsOf) < crowd ||
		number(t, protected, loadsOf) >= 2*crowd {
		t.Error("without the filter, want one load of each missing row")
	}
	off(nulls)
	if protected, _ := l.throw(t, "absent", `{}`); number(t, protected, loadsOf) <= crowd {
		t.Error("without cached absences, want each missing row to be loaded again")
	}
	on(nulls)
	on(filter)
	off(memory)
	l.until(t, "no memory", func(f frame) bool {
		return !f.State.Protections[memory] && empty(f.Protected.Watched[0]) && f.Protected.Watched[0].Redis.Version > 0
	})
	on(memory)
	l.until(t, "memory", func(f frame) bool { return known(f.Protected.Watched[0]) })
	off(stale)
	l.throw(t, "fail", `{"on":true}`)
	before := l.frame(t)
	l.throw(t, "expire", `{}`)
	l.until(t, "errors: without stale serving, nothing is left to be served",
		func(f frame) bool { return f.Protected.Errors >= before.Protected.Errors+5 })
	l.throw(t, "fail", `{"on":false}`)
	on(stale)
	off(plainMap)
	l.until(t, "no map in plain",
		func(f frame) bool { return empty(f.Plain.Watched[0]) && f.Plain.Watched[0].Redis.Version > 0 })
	on(plainMap)
	on(whenDown)
	l.throw(t, "kill", `{"on":true}`)
	testenv.Eventually(t, "a time in which memory is served, and what it lacks is an error, not a load", func() bool {
		protected, _ := l.throw(t, "traffic", `{"reads":250,"writes":5}`)
		return number(t, protected, loadsOf) == 0 && number(t, protected, errorsOf) > 0
	})
	l.throw(t, "traffic", `{"reads":60,"writes":5}`)
	l.throw(t, "kill", `{"on":false}`)
	off(whenDown)
	for _, name := range []string{early, maxLoads, breaker} {
		off(name)
		l.until(t, name+" off", func(f frame) bool { return !f.State.Protections[name] })
		on(name)
	}
}

// TestOldVersionWithoutRedis checks that an older version in Redis is shown as outdated after an
// invalidation has failed, until a retry succeeds.
func TestOldVersionWithoutRedis(t *testing.T) {
	w := &world{truth: newTruth(), pending: map[int64]int64{}}
	if v := w.failedVersion(1); v != 0 {
		t.Errorf("without a failure: version %d", v)
	}
	w.pending[1] = 7
	if v := w.failedVersion(1); v != 7 {
		t.Errorf("after a failure: version %d", v)
	}
}

// warm reads each row of the traffic in both worlds, so that Redis contains all of them.
func (l *testLab) warm() {
	var wg sync.WaitGroup
	for n := range int64(10) {
		wg.Go(func() {
			for id := n + 1; id <= trafficRows; id += 10 {
				l.lab.protected.read(0, id)
				l.lab.plain.read(0, id)
			}
		})
	}
	wg.Wait()
}

// noErrors fails if protected had errors.
func (l *testLab) noErrors(t *testing.T, before, after frame) {
	t.Helper()
	if n, reads := after.Protected.Errors-before.Protected.Errors, after.Protected.Reads-before.Protected.Reads; n > 0 {
		t.Errorf("%d errors in %d reads of protected", n, reads)
	}
}

// stampede starts a stampede. Protected must load the row once. It returns the line of plain.
func (l *testLab) stampede(t *testing.T) (plain string) {
	t.Helper()
	protected, plain := l.throw(t, "stampede", `{}`)
	if number(t, protected, loadsOf) != 1 {
		t.Error("want protected to make 1 load")
	}
	return plain
}

// known reports whether each process has a row in memory.
func known(w watched) bool {
	for _, m := range w.Memory {
		if m.Version == 0 {
			return false
		}
	}
	return true
}

// empty reports whether no process has it.
func empty(w watched) bool { return w.Memory == [processes]seen{} }

// allInRedis reports whether Redis contains all watched rows of the traffic.
func allInRedis(s scene) bool {
	for _, w := range s.Watched[:3] {
		if w.Redis.Version == 0 {
			return false
		}
	}
	return true
}

// anyOld reports whether Redis contains an old version of a row of the traffic.
func anyOld(s scene) bool {
	for _, w := range s.Watched[:3] {
		if w.Redis.Stale {
			return true
		}
	}
	return false
}
