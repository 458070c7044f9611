package invalidation

import (
	"testing"
	"time"
)

// follower is a track, on a clock that is made up, whose bound is 100.
type follower struct {
	*track
	recorder
}

func newFollower() *follower {
	f := &follower{}
	f.track = &track{bound: 100, lostAfter: 12, memory: &f.recorder}
	return f
}

func instant(n int64) time.Time { return time.Unix(0, 1e18+n) }

// poll is one that meets no message on its way.
func (f *follower) poll(n int64, last uint64) (dead bool) {
	return f.endPoll(f.beginPoll(instant(n)), last)
}

// synced is a track that has received all up to 10, and is trusted until 100.
func synced() *follower {
	f := newFollower()
	f.subscribed(1)
	f.poll(0, 10)
	return f
}

func (f *follower) want(t *testing.T, received uint64, clears int, trusted int64) {
	t.Helper()
	until := f.recorder.trust[0]
	if ok := until.IsZero() && trusted == 0 || until.Equal(instant(trusted)); f.lastReceived != received ||
		f.clears() != clears || !ok {
		t.Errorf("received up to %d, cleared %d times, trusted until %d; want %d, %d and %d", f.lastReceived,
			f.clears(), until.Sub(instant(0)), received, clears, trusted)
	}
}

// flood receives more messages than are kept for a poll, after the one with the number last.
func (f *follower) flood(session, last uint64) uint64 {
	for range 2 * maxDuringPoll {
		f.received(session, position{last, last + 1})
		last++
	}
	return last
}

func TestTrackRules(t *testing.T) {
	for name, rule := range map[string]func(t *testing.T, f *follower){
		"the first poll clears, and trusts": func(t *testing.T, f *follower) {
			f.want(t, 10, 1, 100)
			if f.gaps != 0 {
				t.Error("that is no gap")
			}
		},
		"messages in their order": func(t *testing.T, f *follower) {
			f.received(1, position{10, 11})
			f.received(1, position{11, 20})
			f.want(t, 20, 1, 100)
		},
		"messages of another session": func(t *testing.T, f *follower) {
			f.received(2, position{10, 11})
			f.received(0, position{30, 31})
			f.want(t, 10, 1, 100)
		},
		"one is missing": func(t *testing.T, f *follower) {
			f.received(1, position{11, 12})
			f.want(t, 12, 2, 100)
			f.received(1, position{12, 13})
			f.want(t, 13, 2, 100)
			if f.gaps != 1 {
				t.Errorf("%d gaps", f.gaps)
			}
		},
		"messages from before the session": func(t *testing.T, f *follower) {
			f.received(1, position{8, 9})
			f.received(1, position{9, 10})
			f.want(t, 10, 1, 100)
			f.received(1, position{10, 11})
			f.want(t, 11, 1, 100)
		},
		"the same twice": func(t *testing.T, f *follower) { // the reason is unknown
			f.received(1, position{10, 11})
			f.received(1, position{10, 11})
			f.want(t, 11, 2, 100)
		},
		"a poll that reports what was received": func(t *testing.T, f *follower) {
			f.received(1, position{10, 11})
			f.poll(50, 11)
			f.want(t, 11, 1, 150)
		},
		"a poll that reports what is received while it is in progress": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			f.received(1, position{10, 11})
			f.received(1, position{11, 12})
			f.received(1, position{12, 13})
			f.endPoll(q, 12)
			f.want(t, 13, 1, 150)
		},
		// The server replied before that was announced.
		"a poll that is overtaken by a message": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			f.received(1, position{10, 11})
			f.endPoll(q, 10)
			f.want(t, 11, 1, 150)
		},
		"a poll that reports what is received later": func(t *testing.T, f *follower) {
			if f.poll(50, 12) {
				t.Error("dead")
			}
			f.want(t, 10, 1, 100)
			f.received(1, position{10, 11})
			f.want(t, 11, 1, 100)
			f.received(1, position{11, 12})
			f.want(t, 12, 1, 150)
			if f.poll(75, 13) {
				t.Error("dead, though all was received that was missing")
			}
			f.want(t, 12, 1, 150)
		},
		"a poll that reports what is not received until the next": func(t *testing.T, f *follower) {
			f.poll(50, 11)
			if !f.poll(75, 11) {
				t.Error("it seems to live")
			}
			f.want(t, 11, 2, 175)
			f.received(1, position{10, 11}) // now it comes
			f.received(1, position{11, 12})
			f.want(t, 12, 2, 175)
		},
		"polls in quick succession report what is still gathered": func(t *testing.T, f *follower) {
			f.poll(50, 11)
			if f.poll(51, 11) || f.poll(52, 12) {
				t.Error("dead")
			}
			f.want(t, 10, 1, 100)
			f.received(1, position{10, 11})
			f.want(t, 11, 1, 150)
			f.received(1, position{11, 12})
			f.poll(53, 12)
			f.want(t, 12, 1, 153)
		},
		"what is not received for long, in spite of polls in quick succession": func(t *testing.T, f *follower) {
			f.poll(50, 11)
			for n := int64(51); n < 62; n++ {
				if f.poll(n, 12) {
					t.Error("dead")
				}
			}
			if !f.poll(63, 12) {
				t.Error("it seems to live")
			}
			f.want(t, 12, 2, 163)
		},
		"what was missing is behind what has come": func(t *testing.T, f *follower) {
			f.poll(50, 11)
			f.received(1, position{11, 12})
			f.want(t, 12, 2, 150)
			if f.poll(75, 13) {
				t.Error("dead, though messages come")
			}
			f.want(t, 12, 2, 150)
		},
		"Redis has lost what was missing": func(t *testing.T, f *follower) {
			f.poll(50, 11)
			if f.poll(60, 10) {
				t.Error("dead")
			}
			f.want(t, 10, 1, 160)
			if f.poll(75, 12) {
				t.Error("dead, though that is missing only now")
			}
			f.want(t, 10, 1, 160)
		},
		"Redis has lost the number": func(t *testing.T, f *follower) {
			if f.poll(50, 3) {
				t.Error("dead")
			}
			f.want(t, 3, 2, 150)
			f.received(1, position{3, 4})
			f.want(t, 4, 2, 150)
		},
		"Redis has lost the number, and given another": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			f.received(1, position{3, 12})
			f.endPoll(q, 12)
			f.want(t, 12, 2, 150)
		},
		"a number from before does not prove anything": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			f.received(1, position{4, 5})
			f.endPoll(q, 5)
			f.want(t, 5, 2, 150)
		},
		"messages behind the answer, when numbers are lost": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			f.received(1, position{3, 4}) // not more than the base: its order after the reply is unknown
			f.endPoll(q, 3)
			f.want(t, 3, 2, 150)
			f.received(1, position{4, 5})
			f.want(t, 5, 3, 150)
		},
		"a session that begins while a poll is under way": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			f.subscribed(2)
			f.want(t, 10, 1, 0)
			f.endPoll(q, 10)
			f.want(t, 10, 1, 0)
			f.poll(60, 10)
			f.want(t, 10, 2, 160)
		},
		"a session that ends while a poll is under way": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			f.unsubscribed()
			f.endPoll(q, 10)
			f.want(t, 10, 1, 0)
			f.poll(60, 10)
			f.want(t, 10, 1, 0)
		},
		"a new session's messages, before it is polled": func(t *testing.T, f *follower) {
			f.subscribed(2)
			f.received(2, position{20, 21})
			q := f.beginPoll(instant(50))
			f.received(2, position{21, 22})
			f.received(2, position{22, 23})
			f.endPoll(q, 22)
			f.want(t, 23, 2, 150)
			if f.gaps != 0 {
				t.Errorf("%d gaps", f.gaps)
			}
		},
		"a new session forgets what was missing": func(t *testing.T, f *follower) {
			f.poll(50, 11)
			f.subscribed(2)
			if f.poll(60, 11) {
				t.Error("dead")
			}
			f.received(2, position{11, 12})
			f.want(t, 12, 2, 160)
		},
		"a poll that fails": func(t *testing.T, f *follower) {
			f.beginPoll(instant(50))
			f.received(1, position{10, 11})
			f.received(1, position{11, 12})
			f.poll(60, 12)
			f.want(t, 12, 1, 160)
		},
		"a poll that tells of what has come before it was sent": func(t *testing.T, f *follower) { // Redis has lost the numbers since
			f.beginPoll(instant(50))
			f.received(1, position{10, 11})
			f.received(1, position{11, 12})
			q := f.beginPoll(instant(60))
			f.endPoll(q, 11)
			f.want(t, 11, 2, 160)
		},
		"a poll that tells of what is missing between messages": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			f.received(1, position{12, 13})
			f.endPoll(q, 12)
			f.want(t, 13, 2, 150) // the message has cleared what was read before it
		},
		"a new session that has missed messages, and hears others before it is polled": func(t *testing.T, f *follower) {
			f.subscribed(2)
			q := f.beginPoll(instant(50))
			f.received(2, position{11, 12})
			f.endPoll(q, 11)
			f.want(t, 12, 2, 150)
			if f.voids.Load() != 2 {
				t.Error("what was announced between the sessions is taken for a doubt")
			}
		},
		"a session that has missed messages, and ends before it is polled": func(t *testing.T, f *follower) {
			f.subscribed(2)
			f.received(2, position{11, 12})
			f.subscribed(3)
			f.poll(50, 12)
			f.want(t, 12, 2, 150)
			if f.voids.Load() != 2 {
				t.Error("what was announced between the sessions is taken for a doubt in the third")
			}
			f.subscribed(4)
			f.poll(60, 12)
			f.want(t, 12, 3, 160)
			if f.voids.Load() != 2 {
				t.Error("memory is voided twice for what was announced once")
			}
		},
		"a poll that reports a number between those received": func(t *testing.T, f *follower) { // see -DBETWEEN in docs/model
			q := f.beginPoll(instant(50))
			f.received(1, position{10, 20}) // from the old master; the new one continues from 10
			f.endPoll(q, 15)
			f.want(t, 15, 2, 150)
		},
		// The same, where the message comes after the reply.
		"a later number than the one that is missing": func(t *testing.T, f *follower) {
			f.poll(50, 15)
			f.received(1, position{10, 20})
			f.want(t, 20, 1, 100)
			if !f.poll(75, 15) {
				t.Error("it seems to live")
			}
			f.want(t, 15, 2, 175)
		},
		"more messages during a poll than are kept": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			n := f.flood(1, 10)
			if len(f.duringPoll) > maxDuringPoll {
				t.Errorf("%d are kept", len(f.duringPoll))
			}
			for _, last := range []uint64{10 + maxDuringPoll + 1, n} {
				// no longer kept: not known to be from this chain
				if f.endPoll(q, last) {
					t.Errorf("%d: dead", last)
				}
				f.want(t, n, 1, 100)
			}
			f.received(1, position{n, n + 1})
			f.poll(75, n+1)
			f.want(t, n+1, 1, 175)
			if f.gaps != 0 {
				t.Errorf("%d gaps", f.gaps)
			}
		},
		"more messages during a poll than are kept, and a number that is kept": func(t *testing.T, f *follower) {
			q := f.beginPoll(instant(50))
			n := f.flood(1, 10)
			f.endPoll(q, 10+maxDuringPoll)
			f.want(t, n, 1, 150)
		},
		"more messages during a poll than are kept, when numbers are lost": func(t *testing.T, f *follower) {
			for _, last := range []uint64{3, 10 + 2*maxDuringPoll + 1} {
				// before all that are kept; after all that came
				f := synced()
				q := f.beginPoll(instant(50))
				n := f.flood(1, 10)
				f.endPoll(q, last)
				if last == 3 {
					f.want(t, 3, 2, 150)
				} else {
					f.want(t, n, 1, 100)
					f.poll(75, last)
					f.want(t, last, 2, 175)
				}
			}
		},
		"more messages than are kept during the first poll of a session": func(t *testing.T, f *follower) {
			f.subscribed(2)
			q := f.beginPoll(instant(50))
			n := f.flood(2, 20)
			f.endPoll(q, n-1)
			f.want(t, n, 1, 0)
			f.poll(75, n)
			f.want(t, n, 2, 175)
			if f.voids.Load() != 2 || f.gaps != 0 {
				t.Errorf("%d voids and %d gaps for what was announced between the sessions", f.voids.Load(), f.gaps)
			}
		},
		"a new session that has missed nothing": func(t *testing.T, f *follower) {
			f.subscribed(2)
			q := f.beginPoll(instant(50))
			f.received(2, position{10, 11})
			f.endPoll(q, 11)
			f.want(t, 11, 2, 150)
			if f.voids.Load() != 1 {
				t.Error("a doubt is taken for what was announced")
			}
		},
		"trust does not go back": func(t *testing.T, f *follower) {
			f.poll(50, 10)
			f.poll(40, 10)
			f.want(t, 10, 1, 150)
		},
		"a lapse": func(t *testing.T, f *follower) {
			f.poll(100, 10)
			if f.lapses != 0 {
				t.Error("trusted until then, and from then")
			}
			f.poll(201, 10)
			f.want(t, 10, 1, 301)
			f.subscribed(2)
			if f.poll(1000, 10); f.lapses != 1 || f.gaps != 0 {
				t.Errorf("%d lapses, %d gaps", f.lapses, f.gaps)
			}
		},
		"a process without a memory": func(t *testing.T, _ *follower) {
			f := newFollower()
			f.track.memory = nil
			f.unsubscribed()
			if f.poll(0, 10) || f.poll(50, 12) || f.poll(75, 12) {
				t.Error("dead")
			}
			f.want(t, 0, 0, 0)
		},
	} {
		t.Run(name, func(t *testing.T) { rule(t, synced()) })
	}
}
