package filters_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A column is a table of 1000 rows whose database finds a row under more keys than its own.
type column struct {
	keys []string
	find func(key string) (own string) // "" if there is no row
	// other returns one of very many other keys of the row i.
	other func(i, n int) string
}

// number compares text with integers as MySQL does: by the number that the text begins with.
func number(text string) string {
	text = strings.TrimLeft(text, " \t\n")
	end := strings.IndexFunc(strings.TrimLeft(text, "+-"), func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		text = text[:end+len(text)-len(strings.TrimLeft(text, "+-"))]
	}
	n, _ := strconv.Atoi(text)
	return strconv.Itoa(n)
}

func oneOf(keys []string, fold func(string) string) func(string) string {
	rows := make(map[string]string)
	for _, key := range keys {
		rows[fold(key)] = key
	}
	return func(key string) string { return rows[fold(key)] }
}

// columns are those of several types and collations.
func columns() map[string]column {
	numbers, names := numbers(1, 1001), make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprint("Ada", i+1, "Mac")
	}
	lower := func(s string) string { return strings.ToLower(strings.TrimRight(s, " ")) }
	mixed := func(s string, n int) string { // some letters of another case
		b := []byte(s)
		for i := range b {
			if n>>(i%16)&1 == 1 && (b[i]|0x20) >= 'a' && (b[i]|0x20) <= 'z' {
				b[i] ^= 0x20
			}
		}
		return string(b)
	}
	return map[string]column{
		"text behind a number": {numbers, oneOf(numbers, number), func(i, n int) string { return fmt.Sprint(i, "x", n) }},
		"one text":             {numbers, oneOf(numbers, number), func(int, int) string { return "2x" }},
		"leading zeros":        {numbers, oneOf(numbers, number), func(i, n int) string { return strings.Repeat("0", 1+n%200) + strconv.Itoa(i) }},
		"signs and spaces":     {numbers, oneOf(numbers, number), func(i, n int) string { return strings.Repeat(" ", n%200) + "+" + strconv.Itoa(i) }},
		"decimals":             {numbers, oneOf(numbers, number), func(i, n int) string { return strconv.Itoa(i) + ".0" + strings.Repeat("0", n%200) }},
		"case":                 {names, oneOf(names, lower), func(i, n int) string { return mixed(names[i-1], n|1) }},
		"trailing spaces":      {names, oneOf(names, lower), func(i, n int) string { return names[i-1] + strings.Repeat(" ", 1+n%200) }},
	}
}

func (c column) loader(t *testing.T, f cacheaside.Filter) *rows {
	r := newRows(t, nil, cacheaside.Options{MemoryBytes: -1}, cacheaside.LoaderOptions{Filter: f})
	r.load = func(_ context.Context, key string) (string, error) {
		if own := c.find(key); own != "" {
			return "of " + own, nil
		}
		return "", cacheaside.ErrNotFound
	}
	return r
}

func maintained(t *testing.T, f reported, source bloom.Source) (built *atomic.Int64, end func()) {
	built = new(atomic.Int64)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- f.Maintain(ctx, func(ctx context.Context, after string) iter.Seq2[string, error] {
			built.Add(1)
			return source(ctx, after)
		}, &bloom.MaintainOptions{Every: -1, Check: 10 * time.Second})
	}()
	return built, func() { cancel(); <-ended }
}

// TestOutsiderCannotEndAFilter: a client asks each second for rows by other keys than their own,
// also before the filter was ever built. The filter continues to refuse missing keys, in
// all processes, and is not built again and again.
func TestOutsiderCannotEndAFilter(t *testing.T) {
	for name, c := range columns() {
		for _, kind := range []string{"redis", "replica", "local"} {
			if kind != "local" && name != "text behind a number" { // which takes long
				continue
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { outsider(t, c, kind) })
			})
		}
	}
}

// filtersOf returns the filters of two processes, and what closes them. A local filter is of one.
func filtersOf(t *testing.T, kind string) (here, there reported, end func()) {
	if kind == "local" {
		f, err := bloom.NewLocal(2000, 0.0001)
		must(t, err)
		return f, f, func() {}
	}
	_, rdb := testenv.Mini(t)
	one := func() *bloom.Redis {
		f, err := bloom.NewRedis(rdb, "rows", 2000, 0.0001, nil)
		must(t, err)
		return f
	}
	f, g := one(), one()
	end = func() { f.Close(); g.Close() }
	if kind == "redis" {
		return f, g, end
	}
	r, err := bloom.NewReplica(f)
	must(t, err)
	q, err := bloom.NewReplica(g)
	must(t, err)
	return r, q, end
}

func outsider(t *testing.T, c column, kind string) {
	here, there, end := filtersOf(t, kind)
	defer end()
	attacked, other := c.loader(t, here), c.loader(t, there)
	built, stop := maintained(t, here, bloom.Keys(c.keys...))
	defer stop()
	for n := range 90 {
		if v, err := attacked.Get(t.Context(), c.other(1+n%1000, n)); err == nil && !strings.HasPrefix(v, "of ") {
			t.Fatal(v)
		}
		time.Sleep(time.Second)
	}
	if n := built.Load(); n > 2 {
		t.Errorf("it was built %d times", n)
	}
	reads, most := 100, 40 // in ten seconds: audits, and a look at the source
	if kind == "local" {   // it is quick: long enough that keys are reported for certain
		reads, most = 1000, 115
	}
	for _, r := range []*rows{other, attacked} {
		loads := r.loads.Load()
		for i := range reads {
			if _, err := r.Get(t.Context(), fmt.Sprint("nobody", i)); !errors.Is(err, cacheaside.ErrNotFound) {
				t.Fatal(err)
			}
			attacked.Get(t.Context(), c.other(1+i%100, i)) // the attack continues
			if key := c.keys[i%100]; r.hides(t, key) {
				t.Fatalf("%s is hidden", key)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := int(r.loads.Load()-loads) - reads; n > most {
			t.Errorf("%d missing keys of %d reached the database", n, reads)
		}
	}
	if f, ok := here.(*bloom.Replica); ok && f.Stats().Copies > 6 {
		t.Errorf("%d copies were made", f.Stats().Copies)
	}
}

// TestWrongSourceOfTexts: a filter whose keys are text, and whose source is another table, or
// leaves rows out, does not hide rows for long, also if a process without loaders builds it.
func TestWrongSourceOfTexts(t *testing.T) {
	all := columns()
	for name, w := range map[string]struct {
		column
		source []string
	}{
		"another table":        {all["case"], keysOf("another table's:", 1000)},
		"keys of another form": {all["text behind a number"], keysOf("user:", 1000)},
		"half of the numbers":  {all["text behind a number"], numbers(1, 501)},
	} {
		for _, elsewhere := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "/", elsewhere), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					kind := "local"
					if elsewhere { // no loader is there
						kind = "redis"
					}
					here, there, end := filtersOf(t, kind)
					defer end()
					r := w.loader(t, here)
					_, stop := maintained(t, there, bloom.Keys(w.source...))
					defer stop()
					hidden, read := 0, 0
					for i := range 300 { // two and a half minutes
						read++
						if r.hides(t, w.keys[(i*7)%1000]) {
							hidden++
						}
						time.Sleep(500 * time.Millisecond)
					}
					t.Logf("%d of %d reads", hidden, read)
					if share := map[bool]int{false: 3, true: 10}[elsewhere]; hidden > share {
						t.Errorf("%d of %d reads were hidden", hidden, read)
					}
				})
			})
		}
	}
}

// TestInsertsThatLag: rows are read 2.5 seconds before their keys reach the filter. Neither the
// first nor the next of them ends the filter for long, and later ones do not end it at all.
func TestInsertsThatLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, end := filtersOf(t, "redis")
		defer end()
		c, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: -1})
		must(t, err)
		defer c.Close()
		d := &database{gone: map[int64]bool{}}
		for id := range int64(stored) {
			d.gone[id] = id >= 1000
		}
		l, err := cacheaside.NewBatchLoader(c, "user", d.load, &cacheaside.LoaderOptions{Filter: f})
		must(t, err)
		built, stop := maintained(t, f, func(context.Context, string) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for id := range int64(stored) {
					d.mu.Lock()
					gone := d.gone[id]
					d.mu.Unlock()
					if !gone && !yield(strconv.FormatInt(id, 10), nil) {
						return
					}
				}
			}
		})
		defer stop()
		time.Sleep(time.Minute)
		for n := range int64(10) {
			id := 1000 + n
			d.mu.Lock()
			d.gone[id] = false
			d.mu.Unlock()
			_, _ = l.Get(t.Context(), id)
			time.Sleep(2500 * time.Millisecond)
			must(t, f.AddMany(t.Context(), []string{strconv.FormatInt(id, 10)}))
			time.Sleep(27500 * time.Millisecond)
			if may, err := f.MightContain(t.Context(), "nobody"); err != nil || may {
				t.Errorf("half a minute after insert %d the filter refuses nothing: %v", n, err)
			}
		}
		if n := built.Load(); n > 2 {
			t.Errorf("it was built %d times", n)
		}
	})
}

// gated is a source whose last key waits.
func gated(gate <-chan struct{}, reading chan<- struct{}, keys ...string) bloom.Source {
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for key, err := range bloom.Keys(keys...)(ctx, after) {
				if key == keys[len(keys)-1] {
					close(reading)
					<-gate
				}
				if !yield(key, err) {
					return
				}
			}
		}
	}
}

// TestHiddenWhileAnotherRebuilds: a rebuild that is under way when a hidden row is found takes its
// place only if it has the row.
func TestHiddenWhileAnotherRebuilds(t *testing.T) {
	for _, kind := range []string{"redis", "replica", "local"} {
		for name, c := range map[string]struct {
			source []string
			want   error
		}{
			"wrong": {[]string{"other1", "other2"}, bloom.ErrHides},
			"right": {[]string{"row1", "row2"}, nil},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					here, there, end := filtersOf(t, kind)
					defer end()
					type rebuilt interface {
						Rebuild(context.Context, bloom.Source, *bloom.RebuildOptions) (bloom.Report, error)
					}
					_, err := here.(rebuilt).Rebuild(t.Context(), bloom.Keys("other1", "other2"), atOnce)
					must(t, err)
					gate, reading, done := make(chan struct{}), make(chan struct{}), make(chan error)
					go func() {
						_, err := there.(rebuilt).Rebuild(t.Context(), gated(gate, reading, c.source...), atOnce)
						done <- err
					}()
					<-reading
					must(t, here.Hidden(t.Context(), "row1"))
					close(gate)
					if err := <-done; !errors.Is(err, c.want) || c.want == nil && err != nil {
						t.Errorf("the rebuild: %v", err)
					}
					time.Sleep(time.Second)
					for _, f := range []bloom.Filter{here, there} {
						if hidden(t, f, []string{"row1"}) != 0 {
							t.Error("the row is hidden again")
						}
					}
					_, err = there.(rebuilt).Rebuild(t.Context(), bloom.Keys("row1", "row2"), atOnce)
					must(t, err)
					time.Sleep(time.Second)
					if hidden(t, here, []string{"row1", "nobody"}) != 1 {
						t.Error("it was not rebuilt")
					}
				})
			})
		}
	}
}
