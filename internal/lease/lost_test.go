package lease

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// timeout is the time-out of a store whose replies are lost. Replies to later commands must come
// within it.
const timeout = 2 * time.Second

// lossy runs f for both ways in which a client notices a lost reply, with both kinds of client.
func lossy(t *testing.T, f func(t *testing.T, n *network, broken bool)) {
	t.Parallel() // each has a server of its own, and mostly waits
	for name, broken := range map[string]bool{"timeout": false, "broken": true} {
		limit := timeout
		if broken {
			limit = testenv.Hang
		}
		for kind, networkFor := range map[string]func(*testing.T, *testenv.Redis,
			time.Duration) *network{"client": networkOf, "cluster": clusterNetworkOf} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				f(t, networkFor(t, testenv.StartRedis(t), limit), broken)
			})
		}
	}
}

// The first send of a lease arrives after an invalidation, and revives it if the second send had
// the same token.
func TestDelayedTakeDoesNotLetAStaleValueIn(t *testing.T) {
	lossy(t, func(t *testing.T, n *network, broken bool) {
		a := n.attempt("k")
		arrive := n.hold(broken)
		n.take(a, Mine) // by the second send; a value is read from the database, and then changed there
		n.check(n.rdb.Del(n.ctx, "k").Err())
		arrive()
		n.fill(a, Entry{Codec: 4, Payload: []byte("stale")}, long, false)

		// A lease remains that only the attempt knows, which may begin a load under it now.
		n.life("k", long)
		n.take(n.attempt("k"), Busy)
		n.read(a, Mine)
		n.fill(a, Entry{Codec: 4, Payload: []byte("fresh")}, long, true)
		n.payload("k", "fresh")
	})
}

func TestDelayedClaimDoesNotLetAStaleValueIn(t *testing.T) {
	lossy(t, func(t *testing.T, n *network, broken bool) {
		n.put("k", Entry{Codec: 4, Payload: []byte("old")}, long)
		a := n.attempt("k")
		arrive := n.hold(broken)
		n.claim(a, Mine)
		n.check(n.rdb.Del(n.ctx, "k").Err())
		arrive()
		n.fill(a, Entry{Codec: 4, Payload: []byte("stale")}, long, false)
		n.life("k", long)
		n.release(a) // also what the first send has left
		n.read(n.attempt("k"), Absent)
	})
}

func TestDelayedTakeLeavesALeaseThatReleaseEnds(t *testing.T) {
	n := newNetwork(t, testenv.Hang)
	a := n.attempt("k")
	arrive := n.hold(true)
	n.take(a, Mine)
	n.check(n.rdb.Del(n.ctx, "k").Err())
	arrive()
	n.release(a)
	n.read(n.attempt("k"), Absent)
}

// The claim that arrives after the fill is one of the new entry: its end must give that one its own
// life, not its predecessor's.
func TestDelayedClaimDoesNotGiveTheNewEntryTheOldLife(t *testing.T) {
	lossy(t, func(t *testing.T, n *network, broken bool) {
		n.put("k", Entry{Codec: 4, Payload: []byte("old"), Expiry: time.Now().Add(time.Hour)}, time.Hour)
		a := n.attempt("k")
		arrive := n.hold(broken)
		n.claim(a, Mine)
		n.fill(a, Entry{Codec: 4, Payload: []byte("new"), Expiry: time.Now().Add(20 * time.Second)},
			20*time.Second, true)
		arrive()
		s := n.payload("k", "new")
		if end := time.Until(s.Entry.Expiry); !s.Entry.Claimed || end > long {
			t.Errorf("the entry is claimed: %v, and its soft life ends in %v", s.Entry.Claimed, end)
		}
		n.release(a)
		s = n.payload("k", "new")
		if end := time.Until(s.Entry.Expiry); s.Entry.Taken(n.rdb.Time(n.ctx).Val()) || end > long {
			t.Errorf("the claim is live, or the soft life ends late: in %v", end)
		}
		if d := n.rdb.PTTL(n.ctx, "k").Val(); d > long || d < 0 {
			t.Errorf("the new entry lives for %v", d)
		}
	})
}

func TestLostReplyOfATakeIsAdopted(t *testing.T) {
	for name, n := range map[string]*network{"client": newNetwork(t, 30*time.Second),
		"cluster": newClusterNetwork(t, 30*time.Second)} {
		n.disturb(testenv.LoseReply)
		a := n.attempt(name)
		n.take(a, Mine)
		if len(a.sent) != 1 || a.token != a.sent[0] {
			t.Errorf("%s: sent %v, adopted %v", name, a.sent, a.token)
		}
		n.renew(a, true)
		n.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
		n.payload(name, "v")
	}
}

func TestLostRepliesOfATakeAreAdoptedByRead(t *testing.T) {
	n := newNetwork(t, 30*time.Second)
	// by a connection of the pool each time
	all := slices.Repeat([]testenv.Action{testenv.LoseReply}, maxSends+conn.MaxStale)
	n.disturb(all...)
	a := n.attempt("k")
	if s, err := a.Take(n.ctx, nil); err == nil || s.Kind == Mine {
		t.Fatalf("take: kind %d, %v", s.Kind, err)
	}
	n.read(n.attempt("k"), Busy) // not of another attempt
	n.read(a, Mine)
	n.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
	n.payload("k", "v")

	n.disturb(all...)
	a = n.attempt("released")
	if _, err := a.Take(n.ctx, nil); err == nil {
		t.Fatal("take: no error")
	}
	n.release(a)
	n.read(n.attempt("released"), Absent)
}

func TestLostReplyOfAClaimIsAdopted(t *testing.T) {
	n := newNetwork(t, 30*time.Second)
	n.disturb(testenv.LoseReply)
	absent := n.attempt("absent")
	n.claim(absent, Mine)
	n.fill(absent, Entry{Codec: 4, Payload: []byte("v")}, long, true)
	n.payload("absent", "v")

	for _, key := range []string{"filled", "failed", "released"} {
		n.put(key, Entry{Codec: 4, Payload: []byte("old")}, 30*time.Second)
		n.disturb(testenv.LoseReply)
		a := n.attempt(key)
		n.claim(a, Mine)
		if len(a.sent) != 1 || a.token != a.sent[0] {
			t.Errorf("%s: sent %v, adopted %v", key, a.sent, a.token)
		}
		n.renew(a, true)
		switch key {
		case "filled":
			n.fill(a, Entry{Codec: 4, Payload: []byte("new")}, long, true)
			n.payload(key, "new")
			continue
		case "failed":
			n.fail(a, time.Hour)
		case "released":
			n.release(a)
		}
		// The lost reply contained the life of the entry. So the key now lives as long as the
		// claim, and the entry stays claimed: a reader of a claimed entry does not trust the life
		// of the key.
		now := n.rdb.Time(n.ctx).Val()
		failed := key == "failed"
		if e := n.payload(key, "old").Entry; !e.Claimed || e.Taken(now) != failed || e.Failed() != failed {
			t.Errorf("%s: the claim: %v, live: %v, without an owner: %v", key, e.Claimed, e.Taken(now), e.Failed())
		}
		n.life(key, long)
		n.claim(n.attempt(key), Mine)
	}
}

func TestLostRepliesOfAFillAreRepeated(t *testing.T) {
	n := newNetwork(t, 30*time.Second)
	for i, losses := range [][]testenv.Action{{testenv.LoseReply}, {testenv.Drop}, {testenv.Drop, testenv.LoseReply}} {
		key := fmt.Sprint("k", i)
		a := n.attempt(key)
		n.take(a, Mine)
		n.disturb(losses...)
		n.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
		n.payload(key, "v")
	}
}

// A fill that arrives after an invalidation finds nothing of its load.
func TestDelayedFillIsRefused(t *testing.T) {
	lossy(t, func(t *testing.T, n *network, broken bool) {
		a := n.attempt("k")
		n.take(a, Mine)
		arrive := n.hold(broken)
		n.fill(a, Entry{Codec: 4, Payload: []byte("stale")}, long, true)
		n.check(n.rdb.Del(n.ctx, "k").Err())
		arrive()
		n.read(n.attempt("k"), Absent)
	})
}

// For any fate of a request for a lease and of its reply, its token is never sent again, neither by
// the store nor by go-redis.
func TestTokenOfALeaseIsSentOnce(t *testing.T) {
	// for a reply that is late; an attempt that comes too late to the next one has sent all that
	// may be sent
	const wait = 150 * time.Millisecond
	late := [][]testenv.Action{{testenv.Delay(2 * wait)}}
	lost := [][]testenv.Action{
		{},
		{testenv.Drop},
		{testenv.LoseReply},
		{testenv.Drop, testenv.LoseReply},
		{testenv.LoseReply, testenv.Drop},
		{testenv.Drop, testenv.Drop},
		{testenv.LoseReply, testenv.LoseReply},
	}
	for name, c := range map[string]struct {
		n     *network
		cases [][]testenv.Action
	}{
		"client": {newNetwork(t, testenv.Hang), lost}, "cluster": {newClusterNetwork(t, testenv.Hang), lost},
		"client, late": {newNetwork(t, wait), late}, "cluster, late": {newClusterNetwork(t, wait), late},
	} {
		t.Run(name, func(t *testing.T) {
			n := c.n
			var mu sync.Mutex
			sent := map[Token]int{}
			var losses []testenv.Action
			n.proxy.OnRequest(func(chunk []byte) testenv.Action {
				mu.Lock()
				defer mu.Unlock()
				token, ok := leaseIn(chunk)
				if !ok {
					return testenv.Pass
				}
				if sent[token]++; len(losses) == 0 {
					return testenv.Pass
				}
				a := losses[0]
				losses = losses[1:]
				return a
			})
			want := 0
			for i, l := range c.cases {
				for _, claim := range []bool{false, true} {
					mu.Lock()
					losses = append([]testenv.Action(nil), l...)
					mu.Unlock()
					if want += len(l) + 1; strings.HasSuffix(name, "late") {
						// else the connection was closed, which is no try
						want += min(len(l)+1, maxSends) - (len(l) + 1)
					}
					a := n.attempt(fmt.Sprint(name, i, claim))
					if claim {
						a.Claim(n.ctx)
					} else {
						a.Take(n.ctx, nil)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for token, times := range sent {
				if times != 1 {
					t.Errorf("the token %v was sent %d times", token, times)
				}
			}
			if len(sent) != want {
				t.Errorf("%d tokens were sent, want %d", len(sent), want)
			}
		})
	}
}

// leaseIn finds the lease that a command asks for.
func leaseIn(chunk []byte) (token Token, ok bool) {
	const before = "\r\n$14\r\n\xa1\x00" // the length of the argument, and the head of a lease
	for i := 0; i+len(before)+len(token) <= len(chunk); i++ {
		if string(chunk[i:i+len(before)]) == before {
			return Token(chunk[i+len(before):]), true
		}
	}
	return token, false
}
