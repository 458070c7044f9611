package lease

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// long bytes that differ.
func longBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// look is a first look at a key.
func (b *backend) look(key string) (s State) {
	b.t.Helper()
	b.store.Read(b.ctx, new(Sizes), []string{key}, func(_ int, held *State, err error) {
		b.check(err)
		s = *held
	})
	return s
}

// A first look shows the beginning of what is long, and Fetch all of it.
func TestLongEntries(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		for _, n := range []int{0, 1, FirstRead - headerSize - 1, FirstRead - headerSize, FirstRead,
			FirstRead + chunk - headerSize, FirstRead + chunk, 3 * chunk} {
			payload := longBytes(n)
			b.delete("k")
			b.put("k", Entry{Codec: 4, Payload: payload}, long)
			s := b.look("k")
			if wantLong := n+headerSize >= FirstRead; s.Kind != Stored || s.Long != wantLong ||
				len(s.Raw) != min(n+headerSize, FirstRead) {
				t.Fatalf("%d bytes: kind %d, long %v, %d of them", n, s.Kind, s.Long, len(s.Raw))
			} else if !wantLong {
				continue
			}
			whole, err := b.store.Fetch(b.ctx, "k", s.Raw, n+headerSize)
			b.check(err)
			if whole.Kind != Stored || whole.Long || !bytes.Equal(whole.Entry.Payload, payload) ||
				whole.Entry.Stamp != s.Entry.Stamp {
				t.Errorf("%d bytes: kind %d, %d bytes of payload", n, whole.Kind, len(whole.Entry.Payload))
			}
			whole, err = b.store.Fetch(b.ctx, "k", s.Raw, n+headerSize-1)
			if b.check(err); whole.Kind != Unknown || !whole.Long || !bytes.Equal(whole.Raw, s.Raw) {
				t.Errorf("%d bytes, one too many: kind %d", n, whole.Kind)
			}
		}
	})
}

// An entry that is replaced while it is fetched is fetched anew: no parts of two are put together,
// and none of what has gone.
func TestLongEntryThatChanges(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		old, fresh := bytes.Repeat([]byte("o"), 3*chunk), bytes.Repeat([]byte("f"), 2*chunk)
		for name, change := range map[string]func(){
			"replaced": func() { b.delete("k"); b.put("k", Entry{Codec: 4, Payload: fresh}, long) },
			"claimed":  func() { b.claim(b.attempt("k"), Mine) },
			"short":    func() { b.delete("k"); b.put("k", Entry{Codec: 4, Payload: fresh[:5]}, long) },
			"deleted":  func() { b.delete("k") },
			"garbage":  func() { b.check(b.rdb.Set(b.ctx, "k", strings.Repeat("?", 2*chunk), 0).Err()) },
		} {
			b.delete("k")
			b.put("k", Entry{Codec: 4, Payload: old}, long)
			look := b.look("k").Raw
			change()
			s, err := b.store.Fetch(b.ctx, "k", look, 8*chunk)
			b.check(err)
			want, payload := Stored, old
			switch name {
			case "replaced":
				payload = fresh
			case "short":
				payload = fresh[:5]
			case "deleted":
				want, payload = Absent, nil
			case "garbage":
				want, payload = Unknown, nil
			}
			if s.Kind != want || !bytes.Equal(s.Entry.Payload, payload) {
				t.Errorf("%s: kind %d, %d bytes", name, s.Kind, len(s.Entry.Payload))
			}
		}
	})
}

// One that changes again and again while it is fetched is not fetched for ever.
func TestLongEntryThatNeverRests(t *testing.T) {
	b := newBackend(t, testenv.SharedRedis(t).Client(t))
	b.put("k", Entry{Codec: 4, Payload: longBytes(2 * chunk)}, long)
	look := b.look("k").Raw
	f, n := fetch{store: b.store, key: "k", limit: 8 * chunk, parts: [][]byte{look}, n: len(look)}, 0
	for range 3 {
		b.delete("k")
		b.put("k", Entry{Codec: 4, Payload: longBytes(2 * chunk)}, long)
		if changed, err := f.run(b.ctx); changed {
			n++
		} else {
			t.Error(err)
		}
	}
	if n != 3 {
		t.Errorf("%d changes were seen", n)
	}
}

// A long entry that cannot be read is replaced, if it has not changed since the read. Neither of
// the two trips carries it, and the reply for a lease of its key does not have it.
func TestLongBytesAreReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		garbage := strings.Repeat("?", 4*chunk)
		for _, holds := range []bool{false, true} {
			b.store.holds = holds
			b.check(b.rdb.Set(b.ctx, "{k}", garbage, 0).Err())
			a := b.attempt("{k}")
			a.State = b.look("{k}")
			if a.State.Kind != Unknown || !a.State.Long || len(a.State.Raw) != FirstRead {
				t.Fatalf("kind %d, %d bytes", a.State.Kind, len(a.State.Raw))
			}
			raw := a.State.Raw
			b.check(b.rdb.Set(b.ctx, "{k}", "!"+garbage, 0).Err())
			s, err := a.Take(b.ctx, raw)
			if wantKind(t, "changed", s, err, Unknown); len(s.Raw) != FirstRead || s.Raw[0] != '!' {
				t.Errorf("the reply has %d bytes", len(s.Raw))
			}
			s, err = b.attempt("{k}").Take(b.ctx, nil)
			if wantKind(t, "not read", s, err, Unknown); len(s.Raw) != FirstRead || !s.Long {
				t.Errorf("the reply has %d bytes", len(s.Raw))
			}
			s, err = a.Take(b.ctx, s.Raw)
			wantKind(t, "unchanged", s, err, Mine)
			b.fill(a, Entry{Codec: 4, Payload: []byte("v")}, long, true)
			b.payload("{k}", "v")
		}
	})
}

// Many keys are read in parts, each by few bytes.
func TestManyLongRows(t *testing.T) {
	r := testenv.SharedRedis(t)
	b := newBackend(t, r.Client(t))
	const n = 1000
	keys, pipe := make([]string, n), b.rdb.Pipeline()
	payload := strings.Repeat("x", 8<<10)
	for i := range keys {
		keys[i] = fmt.Sprint("row", i)
		pipe.Set(b.ctx, keys[i], appendEntry(nil, Entry{Codec: 4, Payload: []byte(payload + keys[i])}), 0)
	}
	_, err := pipe.Exec(b.ctx)
	b.check(err)
	most := 0
	rdb := r.Client(t)
	rdb.AddHook(sizeHook{&most})
	b.store = open(t, rdb, testenv.Hang)
	sizes := &Sizes{}
	for range 3 {
		read := 0
		b.store.Read(b.ctx, sizes, keys, func(i int, held *State, err error) {
			b.check(err)
			if held.Kind == Stored && string(held.Entry.Payload) == payload+keys[i] {
				read++
			}
		})
		if read != n {
			t.Errorf("%d of %d were read", read, n)
		}
	}
	if most > 2*tripBytes {
		t.Errorf("%d bytes were read in one trip", most)
	}
}

// sizeHook notes the largest number of bytes that a pipeline has read.
type sizeHook struct{ most *int }

func (sizeHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (sizeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h sizeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		n := 0
		for _, cmd := range cmds {
			if s, ok := cmd.(*redis.StringCmd); ok {
				n += len(s.Val())
			}
		}
		*h.most = max(*h.most, n)
		return err
	}
}
