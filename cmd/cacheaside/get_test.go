package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

type person struct{ Name string }

// loading creates a cache and a loader with long timeouts. With the defaults, a busy machine would
// look like a hanging Redis, and values would not be stored.
func loading[V any](
	t testing.TB, rdb redis.UniversalClient, o *cacheaside.Options, lo *cacheaside.LoaderOptions,
	load func(context.Context, string) (V, error),
) (*cacheaside.Cache, *cacheaside.Loader[string, V]) {
	t.Helper()
	var options cacheaside.Options
	if o != nil {
		options = *o
	}
	options.RedisTimeout = cmp.Or(options.RedisTimeout, testenv.Hang)
	options.ReadTimeout = cmp.Or(options.ReadTimeout, options.RedisTimeout)
	c, err := cacheaside.New(rdb, &options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "user", load, lo)
	if err != nil {
		t.Fatal(err)
	}
	return c, l
}

func TestGetEntry(t *testing.T) {
	w, rdb := onServer(t)
	getsEntry(w, rdb)
}

func TestGetEntryOnCluster(t *testing.T) {
	c := testenv.SharedCluster(t)
	getsEntry(&world{t, map[string]string{"CACHEASIDE_REDIS": strings.Join(c.Addrs, ",")}}, c.Client(t))
}

func getsEntry(w *world, rdb redis.UniversalClient) {
	w.Helper()
	c, users := loading(w, rdb, nil, &cacheaside.LoaderOptions{TTL: time.Minute, StaleFor: time.Hour},
		func(_ context.Context, key string) (person, error) {
			if key == "none" {
				return person{}, cacheaside.ErrNotFound
			}
			time.Sleep(3 * time.Millisecond)
			return person{strings.Repeat("Ann ", 3)}, nil
		})
	long := strings.Repeat("k", 300)
	for _, key := range []string{"42", long, "", "a}b%c\x00\x1b[31m"} {
		if _, err := users.Get(w.Context(), key); err != nil {
			w.Fatal(err)
		}
		s := parsed[shown](w, exitOK, "get", "user", key)
		e := s.Entry
		if s.Kind != "entry" || e == nil || !e.Fresh || e.Null || e.Codec != "JSON" || e.LongKey != (key == long) ||
			e.Outdated || e.Generation == 0 || s.LoaderGeneration != e.Generation ||
			e.Payload != int64(len(`{"Name":"Ann Ann Ann "}`)) || *e.CostMicros < 3000 || *s.HardIn < 50*60*1000 ||
			s.Value != nil || s.Hold != nil {
			w.Errorf("for %q it shows %+v %+v", key, s, e)
		}
		if _, err := time.Parse(time.RFC3339, e.SoftEnd); err != nil {
			w.Error(err)
		}
		s = parsed[shown](w, exitOK, "get", "--show-value", "user", key)
		if string(s.Value.JSON) != `{"Name":"Ann Ann Ann "}` {
			w.Errorf("the value is %+v", s.Value)
		}
	}
	w.says(w.ok("get", "user", "42"), "cacheaside:user:1:{42}",
		cacheaside.Key{Loader: "user", Text: "42"}.String()[len("user "):], "fresh", "JSON", "on hold", "no")
	if s := parsed[shown](w, exitAbsent, "get", "--version", "2", "user", "42"); s.Kind != "absent" {
		w.Errorf("for another version it shows %+v", s)
	}
	if s := parsed[shown](w, exitAbsent, "--prefix", "other", "get", "user", "42"); s.Kind != "absent" {
		w.Errorf("for another prefix it shows %+v", s)
	}
	if _, err := users.Get(w.Context(), "none"); !errors.Is(err, cacheaside.ErrNotFound) {
		w.Fatal(err)
	}
	if s := parsed[shown](w, exitOK, "get", "--show-value", "user", "none"); s.Kind != "null" || !s.Entry.Null ||
		s.Value != nil {
		w.Errorf("for a null it shows %+v", s)
	}
	w.check(c.InvalidateKeys(w.Context(), users.AllKeys()))
	if s := parsed[shown](w, exitOK, "get", "user", "42"); !s.Entry.Outdated {
		w.Errorf("after an InvalidateAll it shows %+v", s.Entry)
	}
	w.says(w.ok("get", "user", "42"), "outdated")
}

// TestGetStates: leases, error markers, holds and their marks.
func TestGetStates(t *testing.T) {
	w, rdb := onServer(t)
	inLoad, goOn := make(chan struct{}), make(chan struct{})
	c, users := loading(t, rdb, &cacheaside.Options{StrictWrites: true, ReplicaLag: 30 * time.Second},
		&cacheaside.LoaderOptions{ErrorTTL: 20 * time.Second}, func(_ context.Context, key string) (string, error) {
			if key == "bad" {
				return "", errors.New("no")
			}
			inLoad <- struct{}{}
			<-goOn
			return "x", nil
		})
	// A loader that is new to Redis starts on hold.
	w.check(rdb.HSet(t.Context(), invalidation.Numbers("cacheaside", 0), "user", 1).Err())
	w.check(rdb.Set(t.Context(), "cacheaside:user:1:{leased}", "\xa1\x00abcdefghijkl", time.Minute).Err())
	s := parsed[shown](w, exitOK, "get", "user", "leased")
	if s.Kind != "lease" || s.Token == nil || *s.Token != fmt.Sprintf("%x", "abcdefghijkl") || *s.HardIn <= 0 ||
		*s.HardIn > 60_000 {
		t.Errorf("for a lease it shows %+v", s)
	}
	w.check(rdb.Set(t.Context(), "cacheaside:user:1:{failed}", "\xf1", time.Minute).Err())
	if s := parsed[shown](w, exitOK, "get", "user", "failed"); s.Kind != "error marker" {
		t.Errorf("for a failed load it shows %+v", s)
	}
	w.check(rdb.Set(t.Context(), "cacheaside:user:1:{long}", "\xd1\x01", time.Minute).Err())
	if s := parsed[shown](w, exitOK, "get", "user", "long"); s.Kind != "unstorable" {
		t.Errorf("for a value that cannot be stored it shows %+v", s)
	}
	hold, err := c.Hold(t.Context(), users.Key("held"))
	w.check(err)
	s = parsed[shown](w, exitOK, "get", "user", "held")
	if s.Kind != "hold mark" || s.Token == nil || s.Hold == nil || s.Hold.Writers != 1 || s.Hold.Replicas ||
		s.Hold.Until == nil {
		t.Errorf("for a key on hold it shows %+v %+v", s, s.Hold)
	}
	w.says(w.ok("get", "user", "held"), "yes: 1 writer", "hold mark")
	w.check(hold.Invalidate(t.Context()))
	if s := parsed[shown](w, exitAbsent, "get", "user", "held"); s.Kind != "absent" || s.Hold == nil ||
		!s.Hold.Replicas || s.Hold.Writers != 0 {
		t.Errorf("after the hold it shows %+v %+v", s, s.Hold)
	}
	go users.Get(t.Context(), "fresh")
	<-inLoad
	if s := parsed[shown](w, exitOK, "get", "user", "fresh"); s.Kind != "lease" {
		t.Errorf("during a load it shows %+v", s)
	}
	close(goOn)
}

// TestGetForeign: values and types of other programs are reported as such.
func TestGetForeign(t *testing.T) {
	w, rdb := onServer(t)
	entry := "\xe1\x10" + strings.Repeat("\x00", 30)
	ctx := t.Context()
	rdb.HSet(ctx, "cacheaside:user:1:{hash}", "a", "b")
	rdb.LPush(ctx, "cacheaside:user:1:{list}", "a")
	for key, value := range map[string]string{"text": "hello", "empty": "", "cut": entry[:31], "newer": "\xe2\x10" +
		entry[2:], "keyed": "\xe1\x18" + entry[2:], "lease": "\xa1\x00", "longlease": "\xa1\x00abcdefghijklm"} {
		w.check(rdb.Set(ctx, "cacheaside:user:1:{"+key+"}", value, 0).Err())
		s := parsed[shown](w, exitOK, "get", "--show-value", "user", key)
		if s.Kind != "undecodable" || s.Entry != nil || s.Value != nil || s.Size != int64(len(value)) ||
			s.HardEnd != nil {
			t.Errorf("for %s it shows %+v", key, s)
		}
	}
	for _, key := range []string{"hash", "list"} {
		if s := parsed[shown](w, exitOK, "get", "user", key); s.Kind != "foreign" || s.Type != key {
			t.Errorf("for a %s it shows %+v", key, s)
		}
	}
	long := strings.Repeat("k", 300)
	// The hash of another name.
	w.check(rdb.Set(ctx, "cacheaside:user:1:{%~300~"+"Sk9yCZEjR6T_pIsTKJdrfbUcwkPWlnKWxHtGGF7T2rM"+"}", "x", 0).Err())
	w.fails(exitAbsent, "", "get", "user", long)
	w.check(rdb.Set(ctx, "cacheaside:user:1:{x}", entry, 0).Err())
	w.check(rdb.Set(ctx, "cacheaside:user:1:{x}:hold", "not a set", 0).Err())
	w.check(rdb.Set(ctx, invalidation.Numbers("cacheaside", 0), "not a hash", 0).Err())
	if s := parsed[shown](w, exitOK, "get", "user", "x"); s.Kind != "entry" || s.Hold == nil || s.Hold.Flaw == "" ||
		s.LoaderGeneration != 0 {
		t.Errorf("with foreign keys next to it, it shows %+v %+v", s, s.Hold)
	}
}

// TestGetValueIsBounded: a value longer than --max-value is not shown, even if it is short when
// compressed.
func TestGetValueIsBounded(t *testing.T) {
	w, rdb := onServer(t)
	_, texts := loading(t, rdb, nil, &cacheaside.LoaderOptions{CompressAbove: 100},
		func(_ context.Context, key string) (string, error) {
			return strings.Repeat("a", len(key)*1000), nil
		})
	for _, c := range []struct {
		key   string
		most  int
		shown bool
	}{{"k", 1000, true}, {"k", 999, false}, {"kkkkkkkkkk", 5000, false}, {"kkkkkkkkkk", 10000, true}} {
		if _, err := texts.Get(t.Context(), c.key); err != nil {
			t.Fatal(err)
		}
		s := parsed[shown](w, exitOK, "get", "--show-value", "--max-value", fmt.Sprint(c.most), "user", c.key)
		if !s.Entry.Compressed || (s.Value.Text != nil) != c.shown || c.shown &&
			len(*s.Value.Text) != 1000*len(c.key) || !c.shown && !strings.Contains(s.Value.Hidden, "--max-value") {
			t.Errorf("%d bytes up to %d: %+v", 1000*len(c.key), c.most, s.Value)
		}
	}
	w.check(rdb.Set(t.Context(), "cacheaside:user:1:{plain}",
		"\xe1\x40"+strings.Repeat("\x00", 30)+strings.Repeat("a", 1000), 0).Err())
	if s := parsed[shown](w, exitOK, "get", "--show-value", "--max-value", "999", "user",
		"plain"); s.Value.Hidden == "" || s.Entry.Payload != 1000 {
		t.Errorf("an uncompressed value: %+v", s.Value)
	}
	w.check(rdb.Set(t.Context(), "cacheaside:user:1:{broken}", "\xe1\x44"+strings.Repeat("\x00", 30)+"\x05abc",
		0).Err())
	if s := parsed[shown](w, exitOK, "get", "--show-value", "user", "broken"); s.Value.Hidden == "" {
		t.Errorf("a damaged value: %+v", s.Value)
	}
}

// TestGetWritesNothing: the server receives no command that writes.
func TestGetWritesNothing(t *testing.T) {
	server := testenv.SharedRedis(t)
	w, _ := onServer(t)
	w.fails(exitAbsent, "", "get", "--show-value", "user", "42")
	for name := range server.CommandCalls(t) {
		switch name {
		case "multi", "exec", "type", "time", "strlen", "getrange", "pttl", "zrange", "hget":
		default:
			t.Errorf("it sends %s", name)
		}
	}
}

// FuzzGet: any contents of a key are shown without control characters, and the output is bounded.
func FuzzGet(f *testing.F) {
	f.Add([]byte("\xe1\x10"+strings.Repeat("\x00", 30)+`{"a":"`+"\u009b\u202e"+`"}`), false)
	f.Add([]byte("\xe1\x18"+strings.Repeat("\x00", 30)+"42{}"), true)
	f.Add([]byte("\xe1\x4c"+strings.Repeat("\xff", 30)+"42\xe8\x07\x00a\xfe\x01\x00"), true)
	f.Add([]byte("\xe1\x08"+strings.Repeat("\x00", 30)+"\x10\x00\x00\x00\x00\x00\x00\x00\x01\x01abcdefgh42{}"), true)
	f.Add([]byte("\xa1\x00abcdefghijkl"), false)
	f.Fuzz(func(t *testing.T, raw []byte, long bool) {
		g := &getting{tool: &tool{}, showValue: true, maxValue: 1000}
		s := &shown{Type: "string", Size: int64(len(raw)), now: time.UnixMilli(1790000000000)}
		g.decode(s, raw[:min(len(raw), lease.HeadSize+lease.MaxGroupsSize+2+1001)], "42", long)
		if s.Kind == "" {
			t.Fatal("no kind")
		}
		var out strings.Builder
		g.stdout = &out
		for _, g.json = range []bool{false, true} {
			out.Reset()
			if err := g.show(s, s.rows); err != nil {
				t.Fatal(err)
			}
			if !harmless(out.String()) {
				t.Fatalf("%q", out.String())
			}
			if len(out.String()) > 20000 {
				t.Fatalf("%d bytes are shown", len(out.String()))
			}
			if g.json && !json.Valid([]byte(out.String())) {
				t.Fatalf("%q is no JSON", out.String())
			}
		}
	})
}

// harmless reports whether text consists of printable lines.
func harmless(text string) bool {
	for line := range strings.Lines(text) {
		if !plain(strings.TrimSuffix(line, "\n")) {
			return false
		}
	}
	return true
}

// TestRepresent: JSON is shown unchanged, text as text, anything else in hexadecimal digits.
func TestRepresent(t *testing.T) {
	for _, c := range []struct {
		bytes string
		id    codec.ID
		want  string
	}{
		{`{"a": "b` + "\u009b" + `"}`, codec.JSON, `value {"a":"b\u009b"}`},
		{"plain\x1b[2J", codec.Raw, `value "plain\x1b[2J"`},
		{"\xff\xfe", codec.Raw, "value 0xfffe"},
		{"{broken", codec.JSON, `value "{broken"`},
		{"\x81\xa1a\x01", codec.MsgPack, `value {"a":1}`},
		{"\x92\xc4\x02ab\xa1<", codec.MsgPack, `value ["YWI=","\u003c"]`},                     // bytes, and text
		{"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", codec.MsgPack, "value 0xcb7ff8000000000000"}, // NaN
		{"\x81\x01\x02", codec.MsgPack, "value 0x810102"},                                     // a key other than text
		{"\x81\xa1a", codec.MsgPack, "value 0x81a161"},                                        // truncated
		{"\x0a\x01x", 9, "value 0x0a0178"},                                                    // a user's codec
		{"", codec.Binary, "value 0x"},
	} {
		var got string
		represent([]byte(c.bytes),
			c.id).row(func(cells ...any) { got = strings.TrimRight(fmt.Sprintln(cells...), "\n") })
		if got != c.want {
			t.Errorf("%q is shown as %s, want %s", c.bytes, got, c.want)
		}
	}
}
