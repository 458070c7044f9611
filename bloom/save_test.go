package bloom

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/bits-and-blooms/bloom/v3"
)

func saved(t testing.TB, l *Local) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, l.Save(&b))
	return b.Bytes()
}

func TestSaveLoad(t *testing.T) {
	if err := newLocal(t, 10, 0.1).Save(io.Discard); !errors.Is(err, ErrIncomplete) {
		t.Errorf("saved what is not complete: %v", err)
	}
	for _, n := range []int{1, 1000, 60_000} { // of one segment, and three
		l := newLocal(t, uint64(n), 0.01)
		keys := keysOf("key", n)
		complete(t, l, keys...)
		b := saved(t, l)
		copied := newLocal(t, 77, 0.1)
		rest := bytes.NewReader(append(slices.Clone(b), "behind"...))
		must(t, copied.Load(iotest.HalfReader(rest)))
		if rest.Len() != len("behind") {
			t.Errorf("%d bytes are left", rest.Len())
		}
		for _, key := range keys {
			if !copied.has(key) {
				t.Fatalf("%s of %d is missed", key, n)
			}
		}
		got, _ := copied.State(t.Context())
		want, _ := l.State(t.Context())
		if got != want || !bytes.Equal(saved(t, copied), b) {
			t.Errorf("%+v instead of %+v", got, want)
		}
		if uint64(len(b)) != fileHeader+4+want.Bits/8+l.current.Load().active.segments*fileSegment {
			t.Errorf("%d bytes", len(b))
		}
	}
}

// TestSaveIsBitsAndBlooms: that library reads a file of one segment.
func TestSaveIsBitsAndBlooms(t *testing.T) {
	l := newLocal(t, 1000, 0.01)
	keys := keysOf("key", 1000)
	complete(t, l, keys...)
	var theirs bloom.BloomFilter
	if _, err := theirs.ReadFrom(bytes.NewReader(saved(t, l)[fileHeader:])); err != nil {
		t.Fatal(err)
	}
	for _, key := range append(keys, keysOf("absent", 1000)...) {
		if theirs.TestString(key) != l.has(key) {
			t.Fatalf("%s: not the same", key)
		}
	}
}

// TestLoadRefuses changes each bit of a file, and cuts it at each byte: the filter stays as it was.
func TestLoadRefuses(t *testing.T) {
	small := newLocal(t, 3, 0.1)
	complete(t, small, "a")
	file := saved(t, small)
	l := newLocal(t, 1000, 0.01)
	complete(t, l, "present")
	before := l.current.Load().active
	refused := func(b []byte, what string, at int) {
		t.Helper()
		err := l.Load(bytes.NewReader(b))
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatalf("%s %d: %v", what, at, err)
		}
		if h := l.current.Load(); h.active != before || h.building != nil {
			t.Fatalf("%s %d: the filter is another", what, at)
		}
	}
	for i := range 8 * len(file) {
		b := slices.Clone(file)
		b[i/8] ^= 1 << (i % 8)
		refused(b, "bit", i)
	}
	for n := range file {
		refused(file[:n], "cut at", n)
	}
	broken := errors.New("broken")
	if err := l.Load(io.MultiReader(bytes.NewReader(file[:60]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("an error of the reader: %v", err)
	}
	if !l.has("present") || l.has("absent") {
		t.Error("the filter is another")
	}
}

// TestLoadAllocatesLittle: a header that claims 512 GB.
func TestLoadAllocatesLittle(t *testing.T) {
	l := newLocal(t, 3, 0.1)
	s := shape{segments: maxSegments, bits: maxBits, k: 7}
	huge := (&localGeneration{bitmap: &bitmap{shape: s}, capacity: 1000, rate: 0.01}).fileHeader()
	for _, n := range []uint64{s.bits, s.k, s.bits} {
		huge = binary.BigEndian.AppendUint64(huge, n)
	}
	huge = append(huge, make([]byte, 100_000)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := l.Load(bytes.NewReader(huge)); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
		t.Errorf("%d bytes", took)
	}
}

// amid calls f once, when half of what it reads has been read.
type amid struct {
	io.Reader
	left int
	f    func()
}

func (a *amid) Read(b []byte) (int, error) {
	n, err := a.Reader.Read(b[:min(len(b), 100)])
	if a.left -= n; a.left <= 0 && a.f != nil {
		a.f()
		a.f = nil
	}
	return n, err
}

// TestLoadPanics: nothing is left of a Load whose reader panics.
func TestLoadPanics(t *testing.T) {
	l := newLocal(t, 1000, 0.01)
	complete(t, l, "row")
	func() {
		defer func() { recover() }()
		l.Load(nil)
	}()
	if h := l.current.Load(); h.building != nil || h.active == nil || !l.has("row") || l.has("absent") {
		t.Error("it is not as it was")
	}
}

// TestLoadKeepsAdds: what is added while a file is read is in the filter.
func TestLoadKeepsAdds(t *testing.T) {
	l := newLocal(t, 1000, 0.01)
	complete(t, l, "saved")
	file := saved(t, l)
	for _, l := range []*Local{l, newLocal(t, 1000, 0.01)} {
		must(t, l.Load(&amid{bytes.NewReader(file), len(file) / 2, func() { must(t, l.Add(t.Context(), "amid")) }}))
		if !l.has("saved") || !l.has("amid") || l.has("neither") {
			t.Fatal("missed")
		}
	}
}

// TestLoadExcludesRebuild: of a Load and a Rebuild that overlap, the second fails at once.
func TestLoadExcludesRebuild(t *testing.T) {
	l, ctx := newLocal(t, 1000, 0.01), t.Context()
	complete(t, l, "row")
	file := saved(t, l)
	refused := func(err error) {
		t.Helper()
		if !errors.Is(err, ErrRebuilding) {
			t.Errorf("%v instead of ErrRebuilding", err)
		}
	}
	must(t, l.Load(&amid{bytes.NewReader(file), len(file) / 2, func() {
		_, err := l.Rebuild(ctx, Keys("row"), nil)
		refused(err)
		refused(l.Load(bytes.NewReader(file)))
	}}))
	source := func(ctx context.Context, after string) iter.Seq2[string, error] {
		refused(l.Load(bytes.NewReader(file)))
		return Keys("row")(ctx, after)
	}
	_, err := l.Rebuild(ctx, source, nil)
	must(t, err)
	if s, _ := l.State(ctx); s.Building || !l.has("row") || l.has("absent") {
		t.Errorf("the filter is not complete: %+v", s)
	}
}

// TestLoadRaces adds from when a file begins to be read until it is loaded, and a little longer.
func TestLoadRaces(t *testing.T) {
	from := newLocal(t, 20_000, 0.01)
	complete(t, from, "saved")
	file := saved(t, from)
	for range 5 {
		l := newLocal(t, 1000, 0.01)
		began, loaded := make(chan struct{}), make(chan struct{})
		added := make([][]string, 2)
		var adders sync.WaitGroup
		for a := range added {
			adders.Go(func() {
				<-began
				for i, more := 0, 50; more > 0; i++ {
					key := fmt.Sprint(a, "/", i)
					must(t, l.Add(t.Context(), key))
					added[a] = append(added[a], key)
					select {
					case <-loaded:
						more--
					default:
					}
				}
			})
		}
		must(t, l.Load(&amid{bytes.NewReader(file), 0, func() { close(began) }}))
		close(loaded)
		adders.Wait()
		for _, key := range append(slices.Concat(added...), "saved") {
			if !l.has(key) {
				t.Fatalf("%s is missed", key)
			}
		}
	}
}

// FuzzLoad loads any input, also with valid checksums: it is refused, or equals the output of Save.
func FuzzLoad(f *testing.F) {
	for _, n := range []uint64{1, 100, 30_000} {
		l, _ := NewLocal(n, 0.01)
		b, _, _ := l.build(f.Context(), 0)
		b.add(f.Context(), []string{"a", "b"})
		b.finish(f.Context())
		f.Add(saved(f, l), false)
	}
	f.Add([]byte(fileMagic+"\x02"), false)
	f.Fuzz(func(t *testing.T, b []byte, right bool) {
		if right && len(b) >= fileHeader+4 {
			b = slices.Clone(b)
			binary.BigEndian.PutUint32(b[48:], crc32.Checksum(b[:48], castagnoli))
			binary.BigEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
		}
		l, _ := NewLocal(10, 0.1)
		r := bytes.NewReader(b)
		if err := l.Load(r); err != nil {
			if !l.has("a") || l.current.Load().active != nil {
				t.Fatal("refused, and changed")
			}
			return
		}
		if again := saved(t, l); !bytes.Equal(again, b[:len(b)-r.Len()]) {
			t.Fatal("another file")
		}
		must(t, l.Add(t.Context(), "c"))
		if !l.has("c") {
			t.Fatal("c is missed")
		}
	})
}
