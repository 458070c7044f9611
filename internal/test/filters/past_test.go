package filters_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// past is a filter whose Redis is about to go back to before some keys were added, and two
// processes that use it: one adds, one only asks.
type past struct {
	server        *testenv.Redis
	rdb           *redis.Client
	writer, other *bloom.Redis
	kept, lost    []string
}

func newPast(t *testing.T, save func(p *past)) *past {
	p := &past{server: testenv.StartRedis(t), kept: keysOf("kept:", 100), lost: keysOf("lost:", 100)}
	p.rdb = p.server.Client(t)
	process := func() *bloom.Redis {
		f, err := bloom.NewRedis(p.server.Client(t), "past", 10_000, 0.001, nil)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	p.writer, p.other = process(), process()
	_, err := p.writer.Rebuild(t.Context(), bloom.Keys(p.kept...), atOnce)
	must(t, err)
	p.marked(t)
	save(p)
	must(t, p.writer.AddMany(t.Context(), p.lost))
	p.marked(t)
	if hidden(t, p.writer, p.lost)+hidden(t, p.other, p.lost) > 0 {
		t.Fatal("what was added is hidden")
	}
	return p
}

// marked waits until both processes have left marks after this.
func (p *past) marked(t *testing.T) {
	before := p.marks(t)
	for _, f := range []*bloom.Redis{p.writer, p.other} {
		_, err := f.MightContain(t.Context(), "any")
		must(t, err)
	}
	testenv.Eventually(t, "the marks of both", func() bool {
		now := p.marks(t)
		changed := 0
		for id, mark := range now {
			if mark != before[id] {
				changed++
			}
		}
		return changed >= 2 && len(now) >= 2
	})
}

func (p *past) marks(t *testing.T) map[string]string {
	marks, err := p.rdb.HGetAll(t.Context(), "cacheaside::bloom:{past}:marks").Result()
	must(t, err)
	return marks
}

// noticed waits until both processes hide nothing, and says for how long they did.
func (p *past) noticed(t *testing.T) {
	t.Helper()
	began, last := time.Now(), time.Duration(0)
	most := 0
	testenv.Eventually(t, "that it is noticed", func() bool {
		n := 0
		for _, f := range []*bloom.Redis{p.writer, p.other} {
			maybe, err := f.MightContainMany(t.Context(), p.lost)
			for _, may := range maybe {
				if !may && err == nil {
					n++
				}
			}
		}
		if n > 0 {
			most, last = max(most, n), time.Since(began)
		}
		s, err := p.writer.State(t.Context())
		return n == 0 && err == nil && !s.Built
	})
	t.Logf("up to %d of %d lookups were refused, for %v", most, 2*len(p.lost), last)
	if testenv.Accepting && last > time.Second {
		t.Errorf("keys were hidden for %v", last)
	}
	if n := hidden(t, p.writer, p.lost) + hidden(t, p.other, p.lost); n > 0 {
		t.Errorf("%d keys are hidden", n)
	}
	_, err := p.writer.Rebuild(t.Context(), bloom.Keys(append(p.kept, p.lost...)...), atOnce)
	must(t, err)
	for _, f := range []*bloom.Redis{p.writer, p.other} {
		testenv.Eventually(t, "that it refuses again", func() bool { return hidden(t, f, keysOf("absent:", 100)) > 90 })
		if n := hidden(t, f, p.lost); n > 0 {
			t.Errorf("%d keys are hidden after the rebuild", n)
		}
	}
}

// TestOlderSnapshot: a server that starts again from before keys were added is found out by its
// run.
func TestOlderSnapshot(t *testing.T) {
	p := newPast(t, func(p *past) { must(t, p.rdb.Save(t.Context()).Err()) })
	p.server.Kill()
	p.server.Restart(t)
	p.noticed(t)
}

// TestOlderSnapshotWithoutWitnesses: the run ID of the server shows the loss even if no process is
// left that has seen the lost data.
func TestOlderSnapshotWithoutWitnesses(t *testing.T) {
	p := newPast(t, func(p *past) { must(t, p.rdb.Save(t.Context()).Err()) })
	must(t, p.writer.Close())
	must(t, p.other.Close())
	p.server.Kill()
	p.server.Restart(t)
	late, err := bloom.NewRedis(p.server.Client(t), "past", 10_000, 0.001, nil)
	must(t, err)
	defer late.Close()
	testenv.Eventually(t, "that it is noticed", func() bool {
		maybe, err := late.MightContainMany(t.Context(), p.lost)
		for _, may := range maybe {
			if !may {
				return false
			}
		}
		return err == nil
	})
}

// TestSwappedDatabases: only the watermarks show that the database is another one.
func TestSwappedDatabases(t *testing.T) {
	p := newPast(t, func(p *past) {
		keys, err := p.rdb.Keys(t.Context(), "*").Result()
		must(t, err)
		for _, key := range keys {
			must(t, p.rdb.Copy(t.Context(), key, key, 1, true).Err())
		}
	})
	must(t, p.rdb.Do(t.Context(), "swapdb", 0, 1).Err())
	p.noticed(t)
	if s, o := p.writer.Stats(), p.other.Stats(); s.RolledBack+o.RolledBack != 1 {
		t.Errorf("%d and %d processes have seen to it", s.RolledBack, o.RolledBack)
	}
}

// TestRestoredDump: nor that keys were put back as they were, where more has been added since than
// was lost.
func TestRestoredDump(t *testing.T) {
	dump := make(map[string]string)
	p := newPast(t, func(p *past) {
		keys, err := p.rdb.Keys(t.Context(), "*").Result()
		must(t, err)
		for _, key := range keys {
			raw, err := p.rdb.Dump(t.Context(), key).Result()
			must(t, err)
			dump[key] = raw
		}
	})
	_, err := p.rdb.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for key, raw := range dump {
			pipe.RestoreReplace(t.Context(), key, 0, raw)
		}
		return nil
	})
	must(t, err)
	late, err := bloom.NewRedis(p.server.Client(t), "past", 10_000, 0.001, nil) // which knows nothing of what was there
	must(t, err)
	defer late.Close()
	for _, key := range keysOf("late:", 500) {
		must(t, late.Add(t.Context(), key))
	}
	p.noticed(t)
}

// TestOutOfReachIsNotPast: what was merely out of reach has lost nothing.
func TestOutOfReachIsNotPast(t *testing.T) {
	p := newPast(t, func(*past) {})
	p.server.Pause()
	p.other.MightContain(t.Context(), "any") // the server does not reply
	p.server.Resume()
	p.marked(t)
	if s, err := p.writer.State(t.Context()); !s.Built || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	for _, f := range []*bloom.Redis{p.writer, p.other} {
		testenv.Eventually(t, "that it refuses again", func() bool { return hidden(t, f, keysOf("absent:", 100)) > 90 })
	}
}
