package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// following is a running tail.
type following struct {
	*world
	out, err *buffer
	end      context.CancelFunc
	code     chan int
}

// follow starts a tail, and returns when it listens to the given number of masters.
func (w *world) follow(masters int, args ...string) *following {
	w.Helper()
	ctx, end := context.WithTimeout(w.Context(), patience)
	f := &following{w, &buffer{}, &buffer{}, end, make(chan int, 1)}
	go func() {
		f.code <- run(ctx, append([]string{"--json"}, append(args, "tail")...),
			func(n string) string { return w.env[n] }, strings.NewReader(""), f.out, f.err)
	}()
	w.Cleanup(end)
	testenv.Eventually(w, "a tail that listens",
		func() bool { return strings.Count(f.out.String(), `"listening"`) >= masters })
	return f
}

// ends stops the tail and returns its output.
func (f *following) ends() []happening {
	f.Helper()
	f.end()
	if code := <-f.code; code != exitOK {
		f.Errorf("exit code %d: %s", code, f.err)
	}
	var all []happening
	for line := range strings.Lines(f.out.String()) {
		var h happening
		f.check(json.Unmarshal([]byte(line), &h))
		all = append(all, h)
	}
	return all
}

// announced returns the announcements.
func announced(all []happening) []happening {
	return slices.DeleteFunc(slices.Clone(all), func(h happening) bool { return h.Event != "announced" })
}

func TestTail(t *testing.T) {
	w, rdb := onServer(t)
	tails(w, rdb, 1)
}

func TestTailOnCluster(t *testing.T) {
	c := testenv.SharedCluster(t)
	tails(&world{t, map[string]string{"CACHEASIDE_REDIS": strings.Join(c.Addrs, ",")}}, c.Client(t), 3)
}

func tails(w *world, rdb redis.UniversalClient, masters int) {
	w.Helper()
	c, err := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: testenv.Hang})
	w.check(err)
	w.Cleanup(func() { c.Close() })
	f := w.follow(masters)
	want := make(map[string]int)
	for i := range 50 {
		k := cacheaside.Key{Loader: "user", Text: fmt.Sprint(i)}
		want[keyHash(k.Hash())]++
		w.check(c.InvalidateKeys(w.Context(), k))
	}
	w.check(c.InvalidateKeys(w.Context(), cacheaside.Key{Loader: "order", All: true}))
	loaders := 1
	if masters > 1 {
		loaders = 16
	}
	testenv.Eventually(w, "all that was announced", func() bool {
		return strings.Count(f.out.String(), `"order"`) >= loaders && strings.Count(f.out.String(), `"keys"`) >= 50
	})
	time.Sleep(50 * time.Millisecond) // duplicates would arrive by now
	all := f.ends()
	origins := make(map[string]bool)
	for _, h := range all {
		switch h.Event {
		case "announced":
			origins[h.Origin] = true
			if h.Kind == "loader" {
				loaders--
			}
			for _, hash := range h.Hashes {
				want[hash]--
			}
			if _, err := time.Parse(time.RFC3339, h.Time); err != nil || h.Range == nil || h.Number == 0 || h.Late {
				w.Errorf("%+v", h)
			}
		case "listening":
		default:
			w.Errorf("%+v", h)
		}
	}
	for hash, n := range want {
		if n != 0 {
			w.Errorf("%s is reported %d times, want once", hash, 1-n)
		}
	}
	if len(origins) != 1 || loaders != 0 {
		w.Errorf("%d processes; %d announcements of a loader are missing", len(origins), loaders)
	}
}

// message returns a message as a process publishes it.
func message(rng byte, origin, prev, num uint64, body string) string {
	b := []byte{0xC1, rng}
	for i := range 8 {
		b = append(b, byte(origin>>(56-8*i)))
	}
	return string(fmt.Appendf(b, "%d %d %s", prev, num, body))
}

// TestTailGaps: gaps in the numbers, late messages and unreadable messages are reported as such,
// and the tail continues.
func TestTailGaps(t *testing.T) {
	w, rdb := onServer(t)
	f := w.follow(1)
	for _, m := range []string{
		message(0, 7, 1, 2, "kabcdefgh"), message(0, 7, 2, 3, "luser"), message(0, 8, 5, 6, "k"),
		message(0, 8, 3, 5, "ttold"), message(0, 8, 3, 5, "ttold"),
		"nonsense\x1b[31m\u009b", "", message(0, 8, 6, 7, "x"), message(99, 8, 6, 7, "k"),
		message(0, 8, 7, 8, "l\x1b[31m"), strings.Repeat("\xff", 1<<20), "\xd1{\"id\":7}", "\xd1\x00",
		message(0, 9, 8, 9, "k"), message(0, 9, 9, 10, "gp\x1b[31m\x00abcdefgh"), message(0, 9, 10, 11, "gabcdefg"),
	} {
		w.check(rdb.Publish(t.Context(), invalidation.Topic("cacheaside", 0), m).Err())
	}
	f.out.until(t, `"number":11,`)
	var got []string
	for _, h := range f.ends() {
		got = append(got, strings.TrimRight(fmt.Sprint(h.Event, " ", h.Number, " ", h.Kind,
			map[bool]string{true: " late"}[h.Late]), " "))
	}
	want := []string{"listening 0", "announced 2 keys", "announced 3 loader", "gap 5", "announced 6 keys",
		"announced 5 told late", "malformed 0", "malformed 0", "announced 7 unknown", "malformed 0",
		"announced 8 loader", "malformed 0", "question 0", "malformed 0", "announced 9 keys", "announced 10 groups",
		"announced 11 unknown"}
	if !slices.Equal(got, want) {
		t.Errorf("it reports\n%q, want\n%q", got, want)
	}
	if !harmless(f.out.String()) {
		t.Errorf("%q", f.out.String())
	}
}

// TestTailForPeople: the output in lines, with --count and --for. The tail ends on a signal, here
// the end of its context.
func TestTailForPeople(t *testing.T) {
	w, rdb := onServer(t)
	out, errs := &buffer{}, &buffer{}
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), []string{"tail", "--count", "5", "--for", "1m"},
			func(n string) string { return w.env[n] }, strings.NewReader(""), out, errs)
	}()
	out.until(t, "listening")
	hashes := strings.Repeat("abcdefgh", 10)
	for _, m := range []string{message(0, 7, 1, 2, "k"+hashes), message(0, 7, 4, 5, "l\x1b]0;x\x07\u202e"),
		"nonsense\x1b[31m", message(0, 7, 5, 6, "t12"), message(0, 7, 6, 7, "gpages\x00abcdefgh")} {
		w.check(rdb.Publish(t.Context(), invalidation.Topic("cacheaside", 0), m).Err())
	}
	if c := <-code; c != exitOK {
		t.Errorf("exit code %d: %s", c, errs)
	}
	w.says(out.String(), "TIME", "10 keys: key#6162636465666768", "and 2 more", "gap: announcements after 2, up to 4",
		"all keys of", "malformed", "2 bytes for listeners", "1 group: group#6162636465666768 of pages",
		"0000000000000007")
	if !harmless(out.String()) {
		t.Errorf("%q", out.String())
	}
	began := time.Now()
	if o := w.ok("tail", "--for", "50ms"); strings.Contains(o, "lost") {
		t.Errorf("the end of the tail is reported as a lost connection:\n%s", o)
	}
	if took := time.Since(began); testenv.Accepting && took > 5*time.Second {
		t.Errorf("--for 50ms takes %v", took)
	}
}

// TestTailLost: a lost subscription is reported and renewed. Announcements in that time are
// reported as a gap.
func TestTailLost(t *testing.T) {
	server := testenv.SharedRedis(t)
	p := testenv.NewProxy(t, server.Addr)
	w := &world{t, map[string]string{"CACHEASIDE_REDIS": p.Addr}}
	c, err := cacheaside.New(server.Client(t), &cacheaside.Options{RedisTimeout: testenv.Hang})
	w.check(err)
	defer c.Close()
	key := cacheaside.Key{Loader: "user", Text: "1"}
	f := w.follow(1)
	w.check(c.InvalidateKeys(t.Context(), key))
	f.out.until(t, `"announced"`)
	p.Cut()
	f.out.until(t, `"lost"`)
	w.check(c.InvalidateKeys(t.Context(), key))
	p.Restore()
	testenv.Eventually(t, "a tail that listens again",
		func() bool { return strings.Count(f.out.String(), `"listening"`) == 2 })
	w.check(c.InvalidateKeys(t.Context(), key))
	f.out.until(t, `"gap"`)
	if n := len(announced(f.ends())); n < 1 {
		t.Errorf("%d announcements", n)
	}
}

// TestTailSignal: the program ends cleanly on SIGTERM.
func TestTailSignal(t *testing.T) {
	server := testenv.SharedRedis(t)
	child := testenv.SpawnChild(t, "tail", "CACHEASIDE_REDIS="+server.Addr)
	for {
		line, err := child.ReadLine(patience)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "listening") {
			break
		}
	}
	if err := syscall.Kill(child.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("SIGTERM ends it with %v", err)
	}
}
