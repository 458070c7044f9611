package invalidation

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func someQuestion() Question {
	return Question{ID: 7, Patience: 2 * time.Second, Keys: []Asked{
		{"user", 1, 1500 * time.Millisecond}, {"order", 1 << 63, 0}, {"user", 2, time.Hour},
	}}
}

func TestQuestionThereAndBack(t *testing.T) {
	for _, q := range []Question{someQuestion(), {ID: 1 << 63}} {
		b, err := q.encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ReadQuestion(string(b)); err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v, %v; want %+v", got, err, q)
		}
	}
	long := Question{Keys: make([]Asked, MaxAsked+1)}
	if _, err := long.encode(); err == nil {
		t.Error("too many keys")
	}
	if _, err := (&Question{Keys: []Asked{{Loader: strings.Repeat("l", 256)}}}).encode(); err == nil {
		t.Error("a name that is too long")
	}
}

func TestMalformedQuestions(t *testing.T) {
	q := someQuestion()
	b, err := q.encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range b {
		if _, err := ReadQuestion(string(b[:n])); err == nil {
			t.Errorf("cut off at %d", n)
		}
	}
	question := func(n int, key string) string {
		return string([]byte{questionByte}) + `{"id":1,"keys":[` + strings.Repeat(key+",", n-1) + key + "]}"
	}
	const key = `{"loader":"user","hash":1,"ago":0}`
	long := question(MaxAsked, key)
	if q, err := ReadQuestion(long); err != nil || len(q.Keys) != MaxAsked {
		t.Errorf("%d keys: %v", len(q.Keys), err)
	}
	for name, in := range map[string]string{
		"too many keys":            question(MaxAsked+1, key),
		"of a loader without name": question(1, `{"hash":1}`),
		"of a loader of any name":  question(1, `{"loader":"a b","hash":1}`),
		"of a long name":           question(1, `{"loader":"`+strings.Repeat("l", maxLoader+1)+`"}`),
		"of the future":            question(1, `{"loader":"user","ago":-1}`),
		"of the beginning of time": question(1, `{"loader":"user","ago":9223372036854775807}`),
		"too long":                 question(1, key) + strings.Repeat(" ", maxQuestion),
		"of two":                   question(1, key) + question(1, key)[1:],
	} {
		if _, err := ReadQuestion(in); err == nil {
			t.Error(name)
		}
	}
	n := 10_000
	if testenv.Accepting {
		n = 10_000_000
	}
	for in := range testenv.Noise(1, n, b, []byte(long)) {
		if q, err := ReadQuestion(string(in)); err == nil && len(q.Keys) > MaxAsked {
			t.Fatalf("%x", in)
		}
	}
}

func FuzzQuestion(f *testing.F) {
	q := someQuestion()
	b, _ := q.encode()
	f.Add(string(b))
	f.Fuzz(func(t *testing.T, in string) {
		q, err := ReadQuestion(in)
		if err != nil {
			return
		}
		if len(q.Keys) > MaxAsked {
			t.Fatalf("%d keys", len(q.Keys))
		}
		if _, err := q.encode(); err != nil {
			t.Fatal(err)
		}
	})
}

// deafMemory fails a test if anything is done to it.
type deafMemory struct{ t *testing.T }

func (d deafMemory) Forget(uint64)        { d.t.Error("something was forgotten") }
func (d deafMemory) Clear(int)            { d.t.Error("it was cleared") }
func (d deafMemory) Void(int)             { d.t.Error("it was voided") }
func (d deafMemory) Trust(int, time.Time) { d.t.Error("trust has changed") }

// A question, also one of a later version or a malformed one, ends nothing that is remembered, and
// does not count as an announcement. So a fleet in which only some processes know of questions, or
// of later ones, receives its announcements as before: a version that does not know them takes the
// first byte for that of an unknown format, which this test shows, too.
func TestQuestionsChangeNothing(t *testing.T) {
	_, rdb := testenv.Mini(t)
	c := open(t, rdb, timeout, bound, nil)
	c.memory = deafMemory{t}
	c.tracks[0].memory = deafMemory{t}
	c.tracks[0].session, c.tracks[0].synced, c.tracks[0].lastReceived = 1, true, 10
	received := 0
	c.OnQuestion(func(Question) { received++ })
	q := someQuestion()
	good, err := q.encode()
	if err != nil {
		t.Fatal(err)
	}
	c.received(1, string(good))
	c.received(1, string(good[:5]))
	later := append([]byte{questionByte + 1}, good[1:]...)
	c.received(1, string(later))
	if _, err := Decode(good); err == nil {
		t.Error("a question reads as an announcement")
	}
	s := c.Stats()
	if received != 1 || s.Questions != 1 || s.Malformed != 2 || s.Received != 0 || s.Gaps != 0 ||
		c.tracks[0].lastReceived != 10 {
		t.Errorf("%d received, %+v", received, s)
	}
}
