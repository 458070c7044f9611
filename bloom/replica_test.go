package bloom

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"testing"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

func newReplica(t testing.TB, rdb redis.UniversalClient, options *Options) *Replica {
	t.Helper()
	f, err := NewRedis(rdb, "users", 1000, 0.01, options)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	r, err := NewReplica(f)
	must(t, err)
	return r
}

// patient are options whose bound no test reaches.
var patient = &Options{Timeout: testenv.Hang / 2, MaxStaleness: time.Minute, watchInterval: -1}

// copiedBy waits until a replica has its own copy.
func copiedBy(t testing.TB, r *Replica) *bitmapCopy {
	t.Helper()
	testenv.Eventually(t, "copied", func() bool { return r.Stats().Copied })
	return r.serving.Load()
}

func someKeys(name string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(name, i)
	}
	return keys
}

// sameBits fails unless a copy has the bits that Redis has.
func sameBits(t *testing.T, f *Redis, g *generation, c *bitmapCopy) {
	t.Helper()
	for s := range g.Segments {
		raw, err := f.rdb.Get(t.Context(), segmentKey(f.options.Prefix, f.name, g.ID, s)).Result()
		must(t, err)
		for i, w := range c.SegmentWords(s) {
			for j := range 64 {
				at := headerBytes + 8*i + j/8
				there := at < len(raw) && raw[at]&(0x80>>(j%8)) != 0
				if there != (w&(1<<j) != 0) {
					t.Fatalf("segment %d, bit %d: %v in Redis", s, 64*i+j, there)
				}
			}
		}
	}
}

func TestReplica(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000) // four segments
		keys := someKeys("key", 3000)
		g := built(t, f, keys[:1000]...)
		r := newReplica(t, rdb, patient)
		c := copiedBy(t, r)
		must(t, f.AddMany(t.Context(), keys[1000:2000]))
		for _, key := range keys[2000:2010] {
			must(t, f.Add(t.Context(), key))
		}
		must(t, r.AddMany(t.Context(), keys[2010:])) // its own
		found := func() int {
			n := 0
			for _, key := range keys {
				if mightContain(t, r, key) {
					n++
				}
			}
			return n
		}
		if n := found(); n < 1990 {
			t.Errorf("%d keys are found", n)
		}
		testenv.Eventually(t, "all are received", func() bool { return found() == len(keys) })
		if maybe, err := r.MightContainMany(t.Context(), append(someKeys("absent", 1000), keys[0])); err != nil ||
			!maybe[1000] || count(maybe) > 5 {
			t.Errorf("%d absent keys are found, %v", count(maybe)-1, err)
		}
		sameBits(t, f, g, c)
		s := r.Stats()
		if s.Copies != 1 || s.CopyBytes != int64(g.shape().Total()/8) || s.LostCopied != 0 || s.TooLarge ||
			s.Gaps != 1 || s.Received < 11 || s.Unknown != 0 || s.Present < int64(len(keys)) || s.Absent < 995 {
			t.Errorf("%+v", s)
		}
		if f.Stats().Copied {
			t.Error("a filter without a replica has a copy")
		}
	})
}

func count(all []bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}

// A filter of one segment, and its copy, are those of bits-and-blooms.
func TestReplicaIsOfBitsAndBlooms(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 1000)
		g := built(t, f, someKeys("a", 300)...)
		r := newReplica(t, rdb, patient)
		c := copiedBy(t, r)
		must(t, r.AddMany(t.Context(), someKeys("b", 300)))
		raw := bloom.New(uint(g.Bits), uint(g.K))
		for _, key := range append(someKeys("a", 300), someKeys("b", 300)...) {
			raw.AddString(key)
		}
		for i, w := range raw.BitSet().Words() {
			if c.Words[i] != w {
				t.Fatalf("word %d has other bits: %d", i, bits.OnesCount64(c.Words[i]^w))
			}
		}
	})
}

// What a process has added it finds at once, and Redis is asked for what others have just added.
func TestReplicaHasItsOwn(t *testing.T) {
	_, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	built(t, f)
	r := newReplica(t, rdb, patient)
	copiedBy(t, r)
	for i := range 100 {
		key := fmt.Sprint("own", i)
		must(t, r.Add(t.Context(), key))
		if !mightContain(t, r, key) {
			t.Fatal("its own key is missed")
		}
		key = fmt.Sprint("another's", i)
		must(t, f.Add(t.Context(), key))
		if maybe, err := r.MightContainFresh(t.Context(), []string{key, "absent"}); err != nil || !maybe[0] ||
			maybe[1] {
			t.Fatal(maybe, err)
		}
	}
	if maybe, err := r.MightContainMany(t.Context(), nil); err != nil || maybe == nil || len(maybe) != 0 {
		t.Error(maybe, err)
	}
}

// After Redis has lost the filter, a replica returns "maybe" without asking Redis, until a rebuild.
func TestReplicaOfWhatIsLost(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000)
		g := built(t, f, "a", "b")
		must(t, rdb.Set(t.Context(), segmentKey(f.options.Prefix, f.name, g.ID, 1), "0123456789abcdefghi", 0).Err())
		must(t, rdb.Del(t.Context(), segmentKey(f.options.Prefix, f.name, g.ID, 2)).Err())
		must(t, rdb.Del(t.Context(), segmentKey(f.options.Prefix, f.name, g.ID, 3)).Err())
		must(t, rdb.LPush(t.Context(), segmentKey(f.options.Prefix, f.name, g.ID, 3), "a list").Err())
		r := newReplica(t, rdb, patient)
		copiedBy(t, r)
		lost := 0
		for _, key := range append(someKeys("absent", 400), "a", "b") {
			h := bitmap.HashOf(key)
			gone := g.shape().Segment(&h) > 0
			if gone {
				lost++
			}
			if maybe := mightContain(t, r, key); maybe != (gone || key == "a" || key == "b") {
				t.Fatalf("key %s, lost: %v, result %v", key, gone, maybe)
			}
		}
		many, err := r.MightContainMany(t.Context(), someKeys("absent", 400))
		must(t, err)
		lost += count(many)
		if s := r.Stats(); s.LostCopied != 3 || s.Lost != int64(lost) || s.Unknown != int64(lost) {
			t.Errorf("%d of %+v", lost, s)
		}
		built(t, f, "a", "b")
		testenv.Eventually(t, "whole",
			func() bool { s := r.Stats(); return s.Copied && s.LostCopied == 0 && s.Copies == 2 })
		if n := count(func() []bool {
			m, _ := r.MightContainMany(t.Context(), someKeys("absent", 400))
			return m
		}()); n > 2 {
			t.Errorf("%d are still lost", n)
		}
	})
}

// A filter that is larger than a copy may be is asked in Redis; so is one that is not there.
func TestReplicaWithoutACopy(t *testing.T) {
	_, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	r := newReplica(t, rdb, &Options{Timeout: testenv.Hang / 2, MaxReplicaBytes: 1000})
	testenv.Eventually(t, "polled", func() bool { return r.Stats().Gaps == 1 })
	if !mightContain(t, r, "absent") || r.Stats().Lost != 1 {
		t.Errorf("%+v", r.Stats())
	}
	built(t, f, "a")
	testenv.Eventually(t, "too large", func() bool { return r.Stats().TooLarge })
	if s := r.Stats(); mightContain(t, r, "absent") || !mightContain(t, r, "a") || s.Copied || s.CopyBytes != 0 ||
		s.Copies != 0 {
		t.Errorf("%+v", s)
	}
	f.capacity = 100
	built(t, f, "a")
	copiedBy(t, r)
	if s := r.Stats(); mightContain(t, r, "absent") || !mightContain(t, r, "a") || s.TooLarge || s.CopyBytes == 0 {
		t.Errorf("%+v", s)
	}
}

// A filter has one replica. The replica may be closed before or after the filter, which works
// without it.
func TestNewReplica(t *testing.T) {
	if r, err := NewReplica(nil); r != nil || err == nil {
		t.Error(r, err)
	}
	server := testenv.SharedRedis(t)
	rdb := server.Client(t)
	f := newFilter(t, rdb, 1000)
	built(t, f, "a")
	must(t, f.Add(t.Context(), "b"))
	if server.CommandCalls(t)["subscribe"] != 0 {
		t.Error("a filter without a replica has subscribed")
	}
	r, err := NewReplica(f)
	must(t, err)
	if r, err := NewReplica(f); r != nil || err == nil {
		t.Error(r, err)
	}
	copiedBy(t, r)
	must(t, r.Close())
	must(t, r.Close())
	must(t, r.Add(t.Context(), "c"))
	if s := r.Stats(); !mightContain(t, r, "c") || mightContain(t, r, "absent") || s.Copied || s.CopyBytes != 0 {
		t.Errorf("%+v", s)
	}
	must(t, f.Close())
	must(t, r.Close())
	if maybe, err := r.MightContain(context.Background(), "absent"); !maybe || err == nil {
		t.Error(maybe, err)
	}
	for _, bad := range []*Options{{MaxReplicaBytes: -1}, {MaxReplicaBytes: 7}} {
		if _, err := NewRedis(rdb, "users", 1000, 0.01, bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// Lookups in a copy allocate nothing.
func TestReplicaAllocatesNothing(t *testing.T) {
	r := still(t, 1000)
	h := bitmap.HashOf("there")
	r.add(&h)
	ctx := t.Context()
	for key, want := range map[string]bool{"there": true, "absent": false} {
		if n := testing.AllocsPerRun(100, func() {
			if maybe, err := r.MightContain(ctx, key); err != nil || maybe != want {
				t.Fatal(maybe, err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", key, n)
		}
	}
	var s Stats
	if r.addStats(&s); s.Present == 0 || s.Absent == 0 {
		t.Error("nothing is counted")
	}
}

// A closed filter gets no Replica, since nothing would close that.
func TestReplicaOfAClosedFilter(t *testing.T) {
	_, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	must(t, f.Close())
	if r, err := NewReplica(f); r != nil || !errors.Is(err, errClosed) {
		t.Error(err)
	}
	for range 20 { // or it is closed at the same time
		f := newFilter(t, rdb, 1000)
		var both sync.WaitGroup
		both.Go(func() { _, _ = NewReplica(f) })
		both.Go(func() { f.Close() })
		both.Wait()
		if r := f.replica.Load(); r != nil && r.ctx.Err() == nil {
			t.Error("it still runs")
		}
	}
}
