package promises

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/msgpack"
)

// roundTrip loads v in one process, and reads it from Redis in another, whose loader has its own
// codec.
func roundTrip[V any](t *testing.T, b backend, v V, writes, reads *cacheaside.LoaderOptions) (entry string) {
	t.Helper()
	const name = "cacheaside:v:1:{k}"
	b.admin.Del(t.Context(), name)
	for i, o := range []*cacheaside.LoaderOptions{writes, reads} {
		c, err := cacheaside.New(b.client(t), &steadyNoMemory)
		if err != nil {
			t.Fatal(err)
		}
		l, err := cacheaside.NewLoader(c, "v", func(context.Context, string) (V, error) {
			if i > 0 {
				t.Errorf("%T %v is loaded again", v, v)
			}
			return v, nil
		}, o)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := l.Get(t.Context(), "k")
			if err != nil || !reflect.DeepEqual(got, v) {
				t.Errorf("%T %#v, written with %v, read with %v: %#v, %v", v, v, writes.Codec, reads.Codec, got, err)
			}
		}
		if s := l.Stats(); s.Undecodable != 0 || s.NullHits != 0 {
			t.Errorf("%T: %+v", v, s)
		}
		c.Close()
	}
	entry, err := b.admin.Get(t.Context(), name).Result()
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

type point struct {
	X, Y int
	Tags map[string]string `json:",omitempty"`
}

// No value looks like a marker: no text and no nil reads as "not found" or as one of the cache's
// own marks, with any codec.
func TestNoValueLooksLikeAMarker(t *testing.T) {
	_, b := embedded(t)
	marks := []string{
		"", "*", "null", "nil", "NotFound", "\x00", "\xa1\x00aaaaaaaaaaaa", "\xf1", "\xe1\x00" + strings.Repeat("a", 22), "\xff\xfe not UTF-8", `"`, "{}", "[]", "0", "false",
	}
	for _, o := range []*cacheaside.LoaderOptions{{}, {Codec: msgpack.Codec}, {Codec: inverse{9}}, {CompressAbove: 1}} {
		for _, text := range marks {
			roundTrip(t, b, []byte(text), o, o)
			if utf8.ValidString(text) || o.Codec != (inverse{9}) { // JSON cannot store other texts
				roundTrip(t, b, text, o, o)
			}
		}
		roundTrip[*point](t, b, nil, o, o)
		roundTrip(t, b, &point{}, o, o)
		roundTrip(t, b, point{1, 2, map[string]string{"a": "b"}}, o, o)
		roundTrip(t, b, 0, o, o)
		roundTrip(t, b, false, o, o)
		roundTrip[any](t, b, nil, o, o)
		roundTrip[[]int](t, b, nil, o, o)
		roundTrip(t, b, math.MaxInt, o, o)
	}
}

// Every loader reads JSON, Binary and values without a codec, whatever codec it writes.
func TestCodecsReadEachOther(t *testing.T) {
	_, b := embedded(t)
	writers := []*cacheaside.LoaderOptions{{}, {Codec: cacheaside.JSON}, {Codec: cacheaside.JSON, CompressAbove: 10}}
	readers := append(writers, &cacheaside.LoaderOptions{Codec: msgpack.Codec},
		&cacheaside.LoaderOptions{Codec: msgpack.Codec,
			CompressAbove: 10}, &cacheaside.LoaderOptions{Codec: inverse{9}})
	for _, writes := range writers {
		for _, reads := range readers {
			roundTrip(t, b, "some text", writes, reads)
			roundTrip(t, b, point{1, 2, map[string]string{"a": strings.Repeat("b", 100)}}, writes, reads)
		}
	}
	// Reads its own format too, compressed or not.
	for _, by := range []cacheaside.Codec{msgpack.Codec, inverse{9}} {
		for _, above := range []int{0, 10} {
			roundTrip(t, b, "some text", &cacheaside.LoaderOptions{Codec: by},
				&cacheaside.LoaderOptions{Codec: by, CompressAbove: above})
			roundTrip(t, b, "some text", &cacheaside.LoaderOptions{Codec: by, CompressAbove: above},
				&cacheaside.LoaderOptions{Codec: by})
		}
	}
	binary := &cacheaside.LoaderOptions{Codec: cacheaside.Binary}
	now := time.Date(2026, 11, 21, 1, 2, 3, 4, time.UTC)
	roundTrip(t, b, now, binary, &cacheaside.LoaderOptions{})
	roundTrip(t, b, now, &cacheaside.LoaderOptions{}, binary)

	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, codec := range []cacheaside.Codec{cacheaside.Binary, inverse{0}, inverse{1}, inverse{2}, inverse{7},
		inverse{16}, inverse{200}, (*inverse)(nil), struct{ cacheaside.Codec }{cacheaside.JSON},
		struct{ cacheaside.Codec }{msgpack.Codec}} {
		if _, err := cacheaside.NewLoader(c, "x", func(context.Context, string) (point, error) { return point{}, nil },
			&cacheaside.LoaderOptions{Codec: codec}); err == nil ||
			!strings.Contains(err.Error(), "LoaderOptions.Codec") {
			t.Errorf("%T: %v", codec, err)
		}
	}
}

// An entry takes 32 bytes in addition to its payload, plus the key if its name contains only a
// hash.
func TestOverheadInRedis(t *testing.T) {
	_, b := embedded(t)
	if entry := roundTrip(t, b, "12345", &cacheaside.LoaderOptions{}, &cacheaside.LoaderOptions{}); len(entry) != 32+5 {
		t.Errorf("%d bytes", len(entry))
	}
	v := point{1, 2, nil}
	payload, _ := json.Marshal(v)
	if entry := roundTrip(t, b, v, &cacheaside.LoaderOptions{}, &cacheaside.LoaderOptions{}); len(entry) != 32+
		len(payload) {
		t.Errorf("%d bytes", len(entry))
	}
	text := strings.Repeat("compressible ", 1000)
	if entry := roundTrip(t, b, text, &cacheaside.LoaderOptions{CompressAbove: 1000},
		&cacheaside.LoaderOptions{}); len(entry) > len(text)/10 {
		t.Errorf("%d bytes", len(entry))
	}
}

// A value longer than MaxValueBytes is returned and not stored. A longer stored value, or one that
// would decompress to more, is not decoded.
func TestMaxValueBytes(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: strings.Repeat("x", 1001), 2: strings.Repeat("y", 1000)})
	bounded := &cacheaside.LoaderOptions{MaxValueBytes: 1000}
	p := start(t, b, d, steadyNoMemory, bounded)
	p.want(t, 1, d.rows[1], nil)
	p.want(t, 1, d.rows[1], nil)
	p.want(t, 2, d.rows[2], nil)
	p.want(t, 2, d.rows[2], nil)
	if s := p.Stats(); s.TooLarge != 2 || s.Unvalidated != 2 || s.Loads != 3 || s.RedisHits != 1 {
		t.Errorf("%+v", s)
	}
	if content := b.admin.Get(t.Context(), redisKey(1)).Val(); content != "\xd1\x01" {
		t.Errorf("%x, want a marker", content)
	}
	if _, err := p.Refresh(t.Context(), 1); err != nil {
		t.Error(err)
	}
	for _, o := range []*cacheaside.LoaderOptions{{}, {CompressAbove: 10}} {
		// Stores it.
		if _, err := start(t, b, d, steadyNoMemory, o).Refresh(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		before := p.Stats()
		p.want(t, 1, d.rows[1], nil)
		if s := p.Stats(); s.Undecodable != before.Undecodable+1 || s.Loads != before.Loads+1 {
			t.Errorf("%+v", s)
		}
	}
}

// A long key has a short name in a separate namespace. An entry with that name is used only for the
// key whose text it contains.
func TestLongKeys(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		c, err := cacheaside.New(b.client(t), &steadyNoMemory)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		loads := 0
		l, err := cacheaside.NewLoader(c, "long", func(_ context.Context, key string) (string, error) {
			loads++
			if strings.HasSuffix(key, "none") {
				return "", cacheaside.ErrNotFound
			}
			return "row of " + key, nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("}{\x00\xff", 10_000)
		name, hashed := readerOf(l).Keys.Name(long)
		if !hashed || len(name) > 200 {
			t.Fatalf("the name has %d bytes", len(name))
		}
		for _, key := range []string{long, long + "x", long + "none", name, "%~40000~",
			name[strings.IndexByte(name, '{')+1:]} {
			for range 2 {
				v, err := l.Get(t.Context(), key)
				if strings.HasSuffix(key, "none") {
					if !errors.Is(err, cacheaside.ErrNotFound) {
						t.Error(err)
					}
				} else if v != "row of "+key || err != nil {
					t.Errorf("%d bytes, %v", len(v), err)
				}
			}
		}
		if s := l.Stats(); loads != 6 || s.RedisHits != 6 || s.Undecodable != 0 {
			t.Errorf("%d loads, %+v", loads, s)
		}
		entry, err := b.admin.Get(t.Context(), name).Result()
		if err != nil || len(entry) != 32+len(long)+len("row of "+long) {
			t.Errorf("the entry has %d bytes, %v", len(entry), err)
		}
		// An entry of another text with the same hash is not used.
		other := entry[:32] + strings.Repeat("o", len(long)) + "somebody else's row"
		if err := b.admin.Set(t.Context(), name, other, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		if v, err := l.Get(t.Context(), long); v != "row of "+long || err != nil {
			t.Errorf("%.30q, %v", v, err)
		}
		if s := l.Stats(); s.Undecodable != 1 {
			t.Errorf("%+v", s)
		}
		if err := l.Invalidate(t.Context(), long); err != nil {
			t.Fatal(err)
		}
		if n := b.admin.Exists(t.Context(), name).Val(); n != 0 {
			t.Error("the entry is still there")
		}
	})
}

// Keys of any type have a key function. Several spellings that the database considers equal are one
// key.
func TestKeyOf(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &steady)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	type pair struct {
		A int
		B float64
	}
	pairs, err := cacheaside.NewLoader(c, "pairs",
		func(_ context.Context, key pair) (string, error) { return fmt.Sprint(key), nil },
		&cacheaside.LoaderOptions{Key: cacheaside.KeyOf(func(p pair) string { return fmt.Sprintf("%d/%v", p.A, p.B) })})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := pairs.Get(t.Context(), pair{1, 2.5}); v != "{1 2.5}" || err != nil {
		t.Error(v, err)
	}
	if n := b.admin.Exists(t.Context(), "cacheaside:pairs:1:{1/2.5}").Val(); n != 1 {
		t.Error("the entry has another name")
	}
	_, err = pairs.Get(t.Context(), pair{1, math.NaN()})
	if !errors.Is(err, flight.ErrNotEqual) {
		t.Error(err)
	}
	if m, err := pairs.GetMany(t.Context(), []pair{{1, math.NaN()}, {1, 2.5}}); !errors.Is(err, flight.ErrNotEqual) ||
		len(m) != 1 {
		t.Error(m, err)
	}
	for key, err := range warming(pairs, t.Context(), slices.Values([]pair{{1, math.NaN()}}), 0) {
		if !errors.Is(err, flight.ErrNotEqual) {
			t.Error(key, err)
		}
	}
	if !readerOf(pairs).Flights.Plain.Idle() {
		t.Error("state of an unequal key is left behind")
	}

	rows := map[string]string{"foo": "old"}
	names, err := cacheaside.NewLoader(c, "names",
		func(_ context.Context, key string) (string, error) { return rows[strings.ToLower(key)], nil },
		&cacheaside.LoaderOptions{Key: cacheaside.KeyOf(strings.ToLower)})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := names.Get(t.Context(), "Foo"); v != "old" || err != nil {
		t.Error(v, err)
	}
	rows["foo"] = "new"
	if err := names.Invalidate(t.Context(), "FOO"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"foo", "Foo", "FOO"} {
		if v, err := names.Get(t.Context(), key); v != "new" || err != nil {
			t.Error(key, v, err)
		}
	}

	for what, o := range map[string]*cacheaside.LoaderOptions{
		"LoaderOptions.Key":   {Key: cacheaside.KeyOf(func(string) string { return "" })},
		"KeyOf":               {Key: cacheaside.CloneOf(func(v int) int { return v })},
		"LoaderOptions.Clone": {Clone: cacheaside.CloneOf(func(v int) int { return v })},
		"KeyOf is nil":        {Key: cacheaside.KeyOf[int](nil)},
		"Clone":               {Clone: cacheaside.CloneOf[string](nil)},
		"BatchSize -1":        {BatchSize: -1},
		"CompressAbove -1":    {CompressAbove: -1},
		"MaxValueBytes":       {MaxValueBytes: 1<<29 + 1},
	} {
		if _, err := cacheaside.NewLoader(c, "checked", func(context.Context, int) (string, error) { return "", nil },
			o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = cacheaside.NewLoader(c, "struct", func(context.Context, pair) (string, error) { return "", nil }, nil)
	if err == nil || !strings.Contains(err.Error(), "pair") || !strings.Contains(err.Error(), "LoaderOptions.Key") {
		t.Error(err)
	}
}

// With Clone, no caller can change the value of another, through memory, a shared load or a batch.
func TestClone(t *testing.T) {
	_, b := embedded(t)
	for _, cloned := range []bool{true, false} {
		c, err := cacheaside.New(b.client(t), &steady)
		if err != nil {
			t.Fatal(err)
		}
		o := &cacheaside.LoaderOptions{}
		if cloned {
			o.Clone = cacheaside.CloneOf(slices.Clone[[]int])
		}
		l, err := cacheaside.NewLoader(c, "shared",
			func(context.Context, string) ([]int, error) { return []int{1, 2, 3}, nil }, o)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 { // loaded, from Redis, from memory
			v, err := l.Get(t.Context(), "1")
			if err != nil || len(v) != 3 || cloned && v[0] != 1 {
				t.Fatal(v, err)
			}
			v[0] = 99
			partsOf(c).memory.Wait()
			m, err := l.GetMany(t.Context(), []string{"1"})
			if err != nil || cloned && m["1"][0] != 1 {
				t.Fatal(m, err)
			}
			m["1"][0] = 99
		}
		if v, _ := l.Refresh(t.Context(), "1"); cloned {
			v[0] = 99
			partsOf(c).memory.Wait()
			if v, err := l.Get(t.Context(), "1"); v[0] != 1 || err != nil {
				t.Error(v, err)
			}
		}
		c.Close()
	}
}

// Every key that the cache writes has a TTL in each of its states.
func TestEveryKeyExpires(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		if _, ok := b.admin.(*redis.ClusterClient); ok {
			return // it has no KEYS; the commands are the same
		}
		flushAll(t, b)
		d := newShelf(10)
		p := startMany(t, b.client(t), d, steadyNoMemory, &cacheaside.LoaderOptions{ErrorTTL: time.Minute})
		check := func(what string, want int) {
			t.Helper()
			keys, err := b.admin.Keys(t.Context(), "*").Result()
			// One, or 16 on a cluster.
			keys = slices.DeleteFunc(keys, func(key string) bool {
				return strings.HasPrefix(key, "cacheaside::announced:")
			})
			if err != nil || len(keys) != want {
				t.Errorf("%s: %d keys, %v", what, len(keys), err)
			}
			for _, key := range keys {
				// TTL and StaleFor.
				if ttl := b.admin.PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > 11*time.Minute {
					t.Errorf("%s: %s has a TTL of %v", what, key, ttl)
				}
			}
		}
		reached, resume := d.pauseCall(1)
		get := later(func() (map[int]string, error) { return p.GetMany(t.Context(), []int{1, 2, 99}) })
		reach(t, reached, "the load")
		check("leases", 3)
		resume()
		if _, err := get(t); err != nil {
			t.Fatal(err)
		}
		check("entries", 3)
		reached, resume = d.pauseCall(2)
		refresh := later(func() (string, error) { return p.Refresh(t.Context(), 1) })
		reach(t, reached, "the refresh")
		check("a claim", 3)
		resume()
		if _, err := refresh(t); err != nil {
			t.Fatal(err)
		}
		d.answer = func([]int, map[int]string) (map[int]string, error) { return nil, errors.New("broken") }
		p.GetMany(t.Context(), []int{3, 4})
		check("markers", 5)
	})
}

// Two versions of a program run at the same time. One has another type of value, and so another
// Version, and may have another codec. Each reads correct values, nothing is undecodable, and
// values are not written repeatedly.
func TestTwoVersionsSideBySide(t *testing.T) {
	least := int64(40) // writes, with a hundred reads for each
	if accepting {
		least = 1000
	}
	type oldRow struct{ Name string }
	type newRow struct {
		Name struct{ First, Last string }
		At   time.Time
	}
	b := realBackend(t)
	const keys = 20
	var version, acknowledged [keys]atomic.Int64
	var loads, writes atomic.Int64
	open := func(o *cacheaside.LoaderOptions) (*cacheaside.Cache, *cacheaside.LoaderOptions) {
		c, err := cacheaside.New(b.client(t), &steadyNoMemory)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, o
	}
	// get reads a key and returns the version that it has seen.
	type program struct {
		get        func(ctx context.Context, key int) (int64, error)
		invalidate func(ctx context.Context, keys ...int) error
		stats      func() cacheaside.Stats
	}
	parse := func(s string) (n int64) { fmt.Sscanf(s, "v%d", &n); return n }
	older := func(o *cacheaside.LoaderOptions) program {
		c, o := open(o)
		l, err := cacheaside.NewLoader(c, "row", func(_ context.Context, key int) (oldRow, error) {
			loads.Add(1)
			return oldRow{fmt.Sprint("v", version[key].Load())}, nil
		}, o)
		if err != nil {
			t.Fatal(err)
		}
		return program{func(ctx context.Context, key int) (int64, error) {
			v, err := l.Get(ctx, key)
			return parse(v.Name), err
		}, l.Invalidate, l.Stats}
	}
	newer := func(o *cacheaside.LoaderOptions) program {
		c, o := open(o)
		l, err := cacheaside.NewLoader(c, "row", func(_ context.Context, key int) (newRow, error) {
			loads.Add(1)
			var r newRow
			r.Name.First = fmt.Sprint("v", version[key].Load())
			return r, nil
		}, o)
		if err != nil {
			t.Fatal(err)
		}
		return program{func(ctx context.Context, key int) (int64, error) {
			v, err := l.Get(ctx, key)
			return parse(v.Name.First), err
		}, l.Invalidate, l.Stats}
	}
	programs := []program{
		older(&cacheaside.LoaderOptions{Codec: msgpack.Codec}),
		older(&cacheaside.LoaderOptions{Codec: msgpack.Codec, CompressAbove: 1}),
		newer(&cacheaside.LoaderOptions{Version: "2"}),
		newer(&cacheaside.LoaderOptions{Version: "2", Codec: cacheaside.JSON, CompressAbove: 1}),
	}
	var wg sync.WaitGroup
	var reads atomic.Int64
	began := time.Now()
	over := func() bool {
		return writes.Load() >= least && reads.Load() >= 100*least || t.Failed() || time.Since(began) > testenv.Hang
	}
	for i, p := range programs {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for !over() {
				key := r.IntN(keys)
				before := acknowledged[key].Load()
				if v, err := p.get(t.Context(), key); err != nil || v < before {
					t.Errorf("program %d: version %d of %d, %v", i, v, before, err)
					return
				}
				reads.Add(1)
			}
		})
	}
	wg.Go(func() {
		for n := 0; !over(); n++ {
			time.Sleep(5 * time.Millisecond)
			key := n % keys
			// A writer invalidates the loaders of both versions, because each knows only its own.
			// From then on readers rely on it.
			next := version[key].Load() + 1
			writes.Add(1)
			version[key].Store(next) // in the database
			for _, p := range []program{programs[0], programs[2]} {
				if err := p.invalidate(t.Context(), key); err != nil {
					t.Error(err)
				}
			}
			acknowledged[key].Store(next)
		}
	})
	wg.Wait()
	var all cacheaside.Stats
	for _, p := range programs {
		s := p.stats()
		all.Undecodable += s.Undecodable
		all.RedisErrors += s.RedisErrors
	}
	// Each of the two Versions of a key is loaded once at the start and after each write, and again
	// if a write came in between.
	most := 2*keys + 2*2*writes.Load()
	t.Logf("%v: %d reads, %d writes, %d loads, of at most %d", time.Since(began), reads.Load(), writes.Load(),
		loads.Load(), most)
	if all.Undecodable != 0 || all.RedisErrors != 0 || loads.Load() > most {
		t.Errorf("%+v, %d loads", all, loads.Load())
	}
}

// Without another Version for another type, the two still work, at the cost of a load each time the
// other has written.
func TestTwoTypesWithSameVersion(t *testing.T) {
	_, b := embedded(t)
	c1, err := cacheaside.New(b.client(t), &steadyNoMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer c1.Close()
	c2, err := cacheaside.New(b.client(t), &steadyNoMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer c2.Close()
	type text struct{ Name string }
	type number struct{ Name int }
	texts, err := cacheaside.NewLoader(c1, "row",
		func(context.Context, int) (text, error) { return text{"text"}, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := cacheaside.NewLoader(c2, "row",
		func(context.Context, int) (number, error) { return number{1}, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if v, err := texts.Get(t.Context(), 1); v.Name != "text" || err != nil {
			t.Error(v, err)
		}
		if v, err := numbers.Get(t.Context(), 1); v.Name != 1 || err != nil {
			t.Error(v, err)
		}
	}
	if a, b := texts.Stats(), numbers.Stats(); a.Undecodable != 2 || b.Undecodable != 3 || a.Loads != 3 ||
		b.Loads != 3 {
		t.Errorf("%+v, %+v", a, b)
	}
}

// Bytes come back unchanged, and changes by the caller do not affect the stored value.
func TestRawBytes(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &steadyNoMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "raw",
		func(context.Context, string) ([]byte, error) { return []byte("some bytes"), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		v, err := l.Get(t.Context(), "1")
		if !bytes.Equal(v, []byte("some bytes")) || err != nil {
			t.Fatalf("%q, %v", v, err)
		}
		clear(v)
	}
	if s := l.Stats(); s.Loads != 1 {
		t.Errorf("%+v", s)
	}
}

// person has fields that JSON changes for some values.
type person struct {
	Name string
	Born time.Time
}

// A value that JSON would change is the same for every caller: it is not cached, and the log and
// Stats report it. AllowLoss caches it as JSON encodes it.
func TestValuesThatJSONChangesAreNotCached(t *testing.T) {
	_, b := embedded(t)
	of := map[int]person{
		1: {"Ada", time.Date(1880, 1, 2, 3, 4, 5, 6, time.FixedZone("LMT", -(4*3600+56*60+2)))},
		2: {"\xff", time.Time{}},
		3: {"Emma", time.Time{}},
	}
	loaders := func(o *cacheaside.LoaderOptions) (all [2]*cacheaside.Loader[int, person], log *strings.Builder) {
		log = &strings.Builder{}
		own := patient
		own.Logger = slog.New(slog.NewTextHandler(log, nil))
		for i := range all {
			c, err := cacheaside.New(b.client(t), &own)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			all[i], err = cacheaside.NewLoader(c, "person",
				func(_ context.Context, key int) (person, error) { return of[key], nil }, o)
			if err != nil {
				t.Fatal(err)
			}
			hear(t, all[i])
		}
		return all, log
	}
	all, log := loaders(nil)
	for key, want := range of {
		for range 2 {
			for _, l := range all {
				if v, err := l.Get(t.Context(), key); err != nil || v.Name != want.Name ||
					v.Born.Format(time.RFC1123Z) != want.Born.Format(time.RFC1123Z) || !v.Born.Equal(want.Born) {
					t.Errorf("%d: %v, %v", key, v, err)
				}
			}
		}
		if v, err := all[0].Refresh(t.Context(), key); err != nil || v.Name != want.Name {
			t.Error(v, err)
		}
		if n := b.admin.Exists(t.Context(),
			fmt.Sprintf("cacheaside:person:1:{%d}", key)).Val(); (n == 1) != (key == 3) {
			t.Errorf("%d: %d entries", key, n)
		}
	}
	if s := all[0].Stats(); s.NotCarried != 6 || s.Unvalidated != 6 || s.LoadErrors != 0 || s.MemoryHits != 1 {
		t.Errorf("%+v", s)
	}
	cacheOf(all[0]).Close()
	cacheOf(all[1]).Close()
	if text := log.String(); !strings.Contains(text, "JSON does not carry a value of promises.person") ||
		strings.Contains(text, "Ada") {
		t.Error(text)
	}
	all, _ = loaders(&cacheaside.LoaderOptions{AllowLoss: true, Version: "2"})
	for range 2 {
		if v, err := all[0].Get(t.Context(), 2); v.Name == "" || err != nil {
			t.Error(v, err)
		}
	}
	if v, err := all[1].Get(t.Context(), 2); v.Name != "\ufffd" || err != nil || all[1].Stats().Loads != 0 {
		t.Error(v, err)
	}
	_, err := cacheaside.NewLoader(cacheOf(all[0]), "raw",
		func(context.Context, int) (struct{ Doc json.RawMessage }, error) {
			return struct{ Doc json.RawMessage }{}, nil
		}, nil)
	if err == nil || !strings.Contains(err.Error(),
		fmt.Sprintf("JSON does not carry Doc: the JSON in a %T comes back compacted and escaped", json.RawMessage{})) {
		t.Error(err)
	}
}
