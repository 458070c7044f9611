package invalidation

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// An invalidation of a range that does not exist may concern any key: nothing is trusted until a
// poll, and the message is applied. Many of them clear memory only once until then.
func TestUnplacedInvalidations(t *testing.T) {
	keys := func(rng int, hash uint64) string {
		return string(appendKeys(append(appendHead(nil, rng, 7), "3 9 "...), []uint64{hash}))
	}
	for name, c := range map[string]struct {
		payload string
		doubts  bool
		forgets bool
	}{
		"of another range":      {keys(5, 77), true, true},
		"of a range beyond all": {"\xC1\x30" + keys(5, 77)[2:], true, false},
		"of a later format":     {"\xC2" + keys(0, 77)[1:], true, false},
		"cut short":             {keys(0, 77)[:12], true, false},
		"that is none":          {"hello", false, false},
		"of a later question":   {"\xD2 and so on", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rdb := testenv.Mini(t)
				b := newBackend(t, rdb)
				ch, m := b.open(bound)
				ch.Listen()
				trusted := func() bool { return ch.Stats().Trusted == 1 }
				testenv.Eventually(t, "trust", trusted)
				voids := m.voids.Load()
				for range 100 {
					b.check(rdb.Publish(b.ctx, ch.topic, c.payload).Err())
				}
				testenv.Eventually(t, "the messages", func() bool { return ch.Stats().Malformed == 100 })
				if got := m.voids.Load() - voids; got > 0 != c.doubts || got > 1 {
					t.Errorf("memory was voided %d times", got)
				}
				if trusted() == c.doubts {
					t.Errorf("trusted: %v", trusted())
				}
				if m.has(77) != c.forgets {
					t.Errorf("forgotten: %v", m.has(77))
				}
				time.Sleep(bound)
				if !trusted() {
					t.Error("it is not trusted again")
				}
			})
		})
	}
}

// An announcement of our own counts, with any known generation: none, since the first poll is under
// way; or a greater one, since a message was forged, or Redis has lost its data.
func TestOwnGenerationsCount(t *testing.T) {
	var now uint64
	fresh := func() *loaders {
		now = 0
		return &loaders{known: map[string]*known{"a": {onChange: func(_ int, generation uint64) { now = generation }}}}
	}
	l := fresh()
	sent := time.Now()
	if l.announced("a", 3, 8) || now != 8 {
		t.Errorf("of generation %d, though 8 was announced", now)
	}
	l.polled("a", 3, 7, sent)
	if now != 8 {
		t.Errorf("the reply to an older poll has brought generation %d back", now)
	}
	l = fresh()
	l.polled("a", 3, 7, sent)
	l.received("a", 3, 1000)
	if !l.announced("a", 3, 8) || now != 8 {
		t.Errorf("of generation %d, though 8 was announced", now)
	}
	if !l.received("a", 3, 5) || now != 8 {
		t.Errorf("of generation %d, by a message of less", now)
	}
}

// duringPoll runs a function between the reply to a poll and its processing.
type duringPoll struct{ do atomic.Pointer[func()] }

func (d *duringPoll) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *duringPoll) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if do := d.do.Load(); err == nil && do != nil && isPoll(cmds) {
			(*do)()
		}
		return err
	}
}

func (d *duringPoll) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if do := d.do.Load(); err == nil && do != nil && strings.HasPrefix(cmd.Name(), "eval") {
			(*do)()
		}
		return err
	}
}

// A range that becomes unconfirmed during a poll is not confirmed by that poll, but by the next
// one.
func TestGenerationUncertainDuringAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		b := newBackend(t, rdb)
		h := &duringPoll{}
		rdb.AddHook(h)
		ch, _ := b.open(long)
		b.check(ch.Confirm(b.ctx, 0))
		if !ch.Confirmed(0) {
			t.Fatal("not confirmed")
		}
		doubt := ch.pollers[0].unconfirm
		h.do.Store(&doubt)
		b.check(ch.Confirm(b.ctx, 0))
		if ch.Confirmed(0) {
			t.Error("confirmed in doubt")
		}
		h.do.Store(nil)
		b.check(ch.Confirm(b.ctx, 0))
		if !ch.Confirmed(0) {
			t.Error("not confirmed again")
		}
	})
}
