package invalidation

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// crowd subscribes so many listeners to the channel of c that announcements are gathered. It
// returns one of them.
func (b *backend) crowd(c *Bus) *redis.PubSub {
	b.t.Helper()
	var first *redis.PubSub
	for range 40 {
		sub := b.rdb.Subscribe(b.ctx, c.topic)
		b.t.Cleanup(func() { sub.Close() })
		if _, err := sub.Receive(b.ctx); err != nil {
			b.t.Fatal(err)
		}
		if first == nil {
			first = sub
		}
	}
	return first
}

// announceRaw announces a key, and does not deliver what was gathered, like a process that is
// killed.
func (b *backend) announceRaw(c *Bus, hash uint64) (pending bool) {
	b.t.Helper()
	body := []byte{keysKind, 0, 0, 0, 0, 0, 0, 0, byte(hash)}
	cmd, err := c.await(b.ctx, announceScript, c.keys[0], c.announcement(0, body, "")...)
	b.check(err)
	reply, err := cmd.Text()
	b.check(err)
	return slices.Contains([]byte(reply), ' ')
}

// pending returns what is gathered.
func (b *backend) pending(c *Bus) string { return b.rdb.HGet(b.ctx, c.keys[0], ":pending").Val() }

// untilPending announces keys until one is gathered. It returns the hash of the next key.
func (b *backend) untilPending(c *Bus, hash uint64) uint64 {
	b.t.Helper()
	for ; hash < 200; hash++ {
		if b.announceRaw(c, hash) {
			return hash + 1
		}
	}
	b.t.Fatal("no announcement is gathered")
	return 0
}

// In a large fleet, one message announces the keys of many invalidations. Each key is outdated, and
// no gap is seen.
func TestAnnouncementsAreGathered(t *testing.T) {
	for name, server := range map[string]func(testing.TB) *testenv.Redis{
		"redis": testenv.SharedRedis, "valkey": testenv.SharedValkey,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, server(t).Client(t))
			listener, m := b.listen(long) // a poll could find that gathered announcements are missing
			sub := b.crowd(listener)
			w := b.writer()
			b.check(w.announceKeys(t.Context(), []uint64{1})) // the server knows the script now
			const n = 250
			_, err := b.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for i := range byte(n - 2) {
					body := []byte{keysKind, 0, 0, 0, 0, 0, 0, 1, i}
					args := w.announcement(0, body, "")
					p.EvalSha(t.Context(), announceScript.Hash, []string{w.keys[0]}, args...)
				}
				return nil
			})
			b.check(err)
			time.Sleep(20 * time.Millisecond)                 // until the next message may follow
			b.check(w.announceKeys(t.Context(), []uint64{2})) // which delivers the rest
			b.until("each key is outdated", func() bool {
				for i := range uint64(n - 2) {
					if !m.has(1<<8 + i) {
						return false
					}
				}
				return m.has(1) && m.has(2)
			})
			if s := listener.Stats(); s.Gaps != 0 || s.Received != n || s.Malformed != 0 {
				t.Errorf("%d gaps, %d announcements received, %d malformed", s.Gaps, s.Received, s.Malformed)
			}
			messages := 0
			for announced := 0; announced < n; messages++ {
				msg, err := sub.ReceiveMessage(t.Context())
				b.check(err)
				decoded, err := Decode([]byte(msg.Payload))
				b.check(err)
				for range decoded.Parts() {
					announced++
				}
			}
			if messages > n/3 {
				t.Errorf("%d messages for %d invalidations", messages, n)
			}
			t.Logf("%d messages for %d invalidations", messages, n)
		})
	}
}

// In a large fleet, one message also announces the groups of many invalidations, between those of
// keys.
func TestGroupsAreGathered(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) redis.UniversalClient{
		"redis":   func(t *testing.T) redis.UniversalClient { return testenv.SharedRedis(t).Client(t) },
		"cluster": func(t *testing.T) redis.UniversalClient { return testenv.SharedCluster(t).Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, start(t))
			b.flush()
			listener, m := b.listen(long)
			log := groups.New(groups.Options{All: allGroups, InUse: true, Forget: m.Forget})
			listener.Register("users", log, func(int, uint64) {})
			ranges := listener.conn.InUse()
			for r := range ranges {
				b.readGroups(listener, r)
			}
			sub := b.crowd(listener)
			for range 3 { // a crowd on each server of a cluster
				b.crowd(listener)
			}
			w, _ := b.grouped()
			const n = 50
			for i := range uint64(n) {
				b.deleteGroup(w, 1000+i, 0)
				b.check(w.announceKeys(t.Context(), []uint64{i}))
			}
			b.until("each group and key is outdated", func() bool {
				for i := range uint64(n) {
					for r := range uint8(ranges) {
						if log.Current(r, log.Last(r), groups.SetOf(1000+i)) {
							return false
						}
					}
					if !m.has(i) {
						return false
					}
				}
				return true
			})
			all := n*ranges + n
			b.until("all were received", func() bool { return listener.Stats().Received == int64(all) })
			if s := listener.Stats(); s.Gaps != 0 || s.Malformed != 0 {
				t.Errorf("%d gaps, %d malformed", s.Gaps, s.Malformed)
			}
			messages, gathered := 0, 0
			for announced := 0; announced < all; messages++ {
				msg, err := sub.ReceiveMessage(t.Context())
				b.check(err)
				decoded, err := Decode([]byte(msg.Payload))
				b.check(err)
				for part := range decoded.Parts() {
					if announced++; part.Kind == groupKind && decoded.Kind == gatheredKind {
						gathered++
					}
				}
			}
			if gathered == 0 {
				t.Error("no announcement of a group was gathered")
			}
			t.Logf("%d messages for %d announcements; %d of groups were gathered", messages, all, gathered)
		})
	}
}

// If the process that would deliver gathered announcements is killed, the next announcement of any
// kind delivers them. The order of the numbers is kept.
func TestGatheredAnnouncementsAreDelivered(t *testing.T) {
	ctx := context.Background()
	for name, deliver := range map[string]func(b *backend, c *Bus){
		"keys": func(b *backend, c *Bus) {
			time.Sleep(5 * time.Millisecond) // after it is due
			b.announceRaw(c, 201)
		},
		"a loader": func(b *backend, c *Bus) { b.check(c.DeleteLoader(ctx, "user")) },
		"a group": func(b *backend, c *Bus) {
			time.Sleep(5 * time.Millisecond) // after it is due
			b.check(c.DeleteGroups(ctx, "user", groups.SetOf(1), time.Minute))
		},
		"a body": func(b *backend, c *Bus) {
			b.check(c.AnnounceBodies(ctx, "key", [][]byte{[]byte("body")}, nil))
		},
		"a body in a script": func(b *backend, c *Bus) {
			b.check(c.AnnounceBy("key", []byte("body"), func(key string, args []any) error {
				s := conn.NewScript("redis.call('SET', KEYS[1] .. ':x', 1)" + AnnounceLua + "return 1")
				return b.rdb.Eval(ctx, s.Source, []string{key}, args...).Err()
			}))
		},
		"a message that is full": func(b *backend, c *Bus) {
			for i := range 40 {
				hashes := make([]uint64, 250)
				for j := range hashes {
					hashes[j] = uint64(1000 + 250*i + j)
				}
				b.check(c.announceKeys(ctx, hashes))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, testenv.StartRedis(t).Client(t))
			listener, m := b.listen(time.Minute) // it does not poll in time
			b.crowd(listener)
			c := b.writer()
			next := b.untilPending(c, 1)
			if b.pending(c) == "" {
				t.Error("nothing is pending")
			}
			deliver(b, c)
			b.until("each key is outdated", func() bool {
				for hash := uint64(1); hash < next; hash++ {
					if !m.has(hash) {
						return false
					}
				}
				return true
			})
			if s := listener.Stats(); s.Gaps != 0 {
				t.Errorf("%d gaps", s.Gaps)
			}
		})
	}
}

// If no announcement follows, the polls of other processes find that numbers are missing.
func TestLostDeliveryIsNoticed(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t).Client(t))
	listener, m := b.listen(bound)
	b.crowd(listener)
	before := m.voids.Load() // by the first poll
	b.untilPending(b.writer(), 1)
	b.until("memory is void", func() bool { return m.voids.Load() > before })
}

// announceKeys announces keys without changing them.
func (b *Bus) announceKeys(ctx context.Context, hashes []uint64) error {
	names := make([]string, len(hashes))
	for i := range names {
		names[i] = "key"
	}
	for _, err := range b.Do(ctx, names, hashes, nil) {
		if err != nil {
			return err
		}
	}
	return nil
}

// Readers may cause polls in quick succession. These find numbers that are still gathered, and take
// them for late, not for lost.
func TestPollsFindWhatIsGathered(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t).Client(t))
	listener, m := b.listen(time.Minute)
	b.crowd(listener)
	c := b.writer()
	next := b.untilPending(c, 1)
	for range 3 {
		b.check(listener.Confirm(t.Context(), 0))
	}
	if s := listener.Stats(); s.Gaps != 0 || s.Subscribes != 1 {
		t.Fatalf("%d gaps, %d subscriptions", s.Gaps, s.Subscribes)
	}
	b.check(c.announceKeys(t.Context(), []uint64{next}))
	c.deliverAfter(0, 20*time.Millisecond) // when it is due
	b.until("each key is outdated", func() bool { return m.has(next-1) && m.has(next) })
	if n := listener.Stats().Gaps; n != 0 {
		t.Errorf("%d gaps", n)
	}
}

// A process that closes delivers what it has gathered.
func TestCloseDeliversGathered(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t).Client(t))
	listener, m := b.listen(time.Minute)
	b.crowd(listener)
	c := b.writer()
	for i := range uint64(20) {
		b.check(c.announceKeys(t.Context(), []uint64{i + 1}))
	}
	c.Close()
	c.conn.Close()
	if s := b.pending(c); s != "" {
		t.Errorf("%d bytes are pending", len(s))
	}
	b.until("each key is outdated", func() bool { return m.has(20) })
}

// While the delivery of one message is late, the process can be the first to gather for the next.
// That one is delivered, too.
func TestLateDeliveryIsNotTheLast(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t).Client(t))
	listener, m := b.listen(time.Minute) // it does not poll in time
	b.crowd(listener)
	c := b.writer()
	now, err := b.rdb.Time(b.ctx).Result()
	b.check(err)
	due := strconv.FormatInt(now.Add(300*time.Millisecond).UnixMicro(), 10)
	b.check(b.rdb.HSet(b.ctx, c.keys[0], ":due", due).Err())
	next := b.untilPending(c, 1)
	c.deliverAfter(0, 100*time.Millisecond) // of an earlier message, which others have delivered
	c.deliverAfter(0, 300*time.Millisecond)
	b.until("the key is outdated", func() bool { return m.has(next - 1) })
}

// A full Redis gathers and delivers, too.
func TestFullRedisGathers(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t, "--maxmemory-policy", "noeviction").Client(t))
	listener, m := b.listen(time.Minute)
	b.crowd(listener)
	c := b.writer()
	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1").Err())
	next := b.untilPending(c, 1)
	time.Sleep(20 * time.Millisecond)
	b.check(c.announceKeys(t.Context(), []uint64{next}))
	b.until("each key is outdated", func() bool { return m.has(next-1) && m.has(next) })
	if n := listener.Stats().Gaps; n != 0 {
		t.Errorf("%d gaps", n)
	}
}

// A gathered message shows that its own announcements were received, and no number between them:
// after a failover another server may have issued it.
func TestGatheredMessageCoversItsNumbers(t *testing.T) {
	for name, c := range map[string]struct {
		body    string
		trusted bool
	}{
		"with the number":    {"n10 15 9 originonkhashhash15 20 9 originonkhashhash", true},
		"without the number": {"n10 12 9 originonkhashhash12 20 9 originonkhashhash", false},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := testenv.SharedRedis(t).Client(t)
			m := &recorder{}
			b := open(t, rdb, timeout, time.Minute, m)
			at := time.Now()
			f := b.tracks[0]
			f.subscribed(1)
			f.endPoll(f.beginPoll(at), 10)
			f.endPoll(f.beginPoll(at.Add(time.Second)), 15) // whose announcement has not arrived
			b.received(1, string(encode(0, 0, "10 20 ", []byte(c.body))))
			if got := f.trusted.Equal(at.Add(time.Second + time.Minute)); got != c.trusted {
				t.Errorf("trusted since the second poll: %v, expected %v", got, c.trusted)
			}
		})
	}
}
