package watermillqueue

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
)

// Any message is either refused or decoded to an item that encodes to the same message.
func FuzzDecode(f *testing.F) {
	for _, i := range []consistency.Item{
		{ID: "a", Key: cacheaside.Key{Loader: "user", Version: "2", Text: "\xff\x00"}, Again: time.Second, After: time.Minute, Attempts: 3, Age: time.Hour},
		{Key: cacheaside.Key{Loader: "user", All: true}, Reload: true},
		{Key: cacheaside.Key{Loader: "user", Text: "team:7", Group: true}, Again: time.Second},
	} {
		n, err := newRecord(i, time.Now())
		if err != nil {
			f.Fatal(err)
		}
		m, err := n.message()
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(m.Payload))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		n, err := decode(payload)
		if err != nil {
			return
		}
		now := time.Now()
		i := (&delivery{record: n}).item(now)
		if err := i.Key.Check(); err != nil || i.Age < 0 || i.Again < 0 || i.Attempts < 0 {
			t.Fatalf("%v: %+v", err, i)
		}
		sent, err := newRecord(i, now)
		if err != nil {
			t.Fatal(err)
		}
		m, err := sent.message()
		if err != nil {
			return // what is as long as it may be
		}
		again, err := decode(m.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if j := (&delivery{record: again}).item(now); i.Key != j.Key || i.Again != j.Again ||
			i.Attempts != j.Attempts || i.Reload != j.Reload || i.Inserting != j.Inserting {
			t.Fatalf("%+v was sent as %+v", i, j)
		}
	})
}

// A message without the flag for filters is left to relays that have the loader.
func TestMessageThatDoesNotSay(t *testing.T) {
	n, err := decode([]byte(`{"v":1,"id":"a","loader":"user","key":"MQ==","at":1,"created":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if !(&delivery{record: n}).item(time.Now()).Inserting {
		t.Error("any process may do it")
	}
}

// A release without groups ignores the field "group". It must not take the name of the group for
// the text of a key, and so reads that the message stands for all keys.
func TestGroupForOlderReleases(t *testing.T) {
	key := cacheaside.Key{Loader: "user", Text: "team:7", Group: true}
	n, err := newRecord(consistency.Item{Key: key}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m, err := n.message()
	if err != nil {
		t.Fatal(err)
	}
	var older struct {
		All bool `json:"all"`
	}
	if err := json.Unmarshal(m.Payload, &older); err != nil || !older.All {
		t.Errorf("an older release reads a key: %s, %v", m.Payload, err)
	}
	if n, err = decode(m.Payload); err != nil || n.key() != key {
		t.Errorf("%#v, %v", n, err)
	}
}
