package codec_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/codec"
)

type plain struct{ X, Y int }

// point has Binary on its pointer for decoding, on itself for encoding.
type point struct{ X, Y int }

func (p point) MarshalBinary() ([]byte, error) { return fmt.Appendf(nil, "%d,%d", p.X, p.Y), nil }

func (p *point) UnmarshalBinary(b []byte) error {
	_, err := fmt.Sscanf(string(b), "%d,%d", &p.X, &p.Y)
	return err
}

type onlyMarshals struct{}

func (onlyMarshals) MarshalBinary() ([]byte, error) { return nil, nil }

// rude fails as How says, in each codec.
type rude struct{ Failure string }

func (r rude) do() ([]byte, error) {
	switch r.Failure {
	case "panic":
		panic("SECRET in a panic")
	case "panic with error":
		panic(errSecret)
	case "out of range":
		_ = r.Failure[len(r.Failure)+987654:]
	case "error":
		return nil, errSecret
	case "goexit":
		runtime.Goexit()
	}
	return []byte(`"` + r.Failure + `"`), nil
}

func (r *rude) undo(b []byte) error {
	r.Failure = "half decoded"
	_, err := rude{strings.Trim(string(b), `"`)}.do()
	return err
}

func (r rude) MarshalBinary() ([]byte, error)  { return r.do() }
func (r rude) MarshalJSON() ([]byte, error)    { return r.do() }
func (r *rude) UnmarshalBinary(b []byte) error { return r.undo(b) }
func (r *rude) UnmarshalJSON(b []byte) error   { return r.undo(b) }
func payloadOf(t *testing.T, id codec.ID, s string) codec.Payload {
	if id != codec.MsgPack && id != user {
		return codec.Payload{Codec: id, Bytes: []byte(`"` + s + `"`)}
	}
	if id == user {
		return codec.Payload{Codec: id, Bytes: inverted([]byte(`"` + s + `"`))}
	}
	p, err := must[[]byte](t, id).Encode([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func shows(err error) bool {
	return strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "987") || errors.Is(err, errSecret)
}

// What the methods of a value do, becomes an error without the value.
func TestRudeMarshalers(t *testing.T) {
	type caught struct{ error }
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack, codec.Binary, user} {
		for _, failure := range []string{"panic", "panic with error", "out of range", "error"} {
			c, err := codec.New[rude](by(id), 0, limit, nil)
			if err != nil {
				t.Fatal(err)
			}
			p, err := c.Encode(rude{failure})
			if err == nil || p.Bytes != nil || shows(err) {
				t.Error(id, failure, p, err)
			}
			v, err := decode(c, payloadOf(t, id, failure))
			if err == nil || v.Failure != "" || shows(err) {
				t.Error(id, failure, v, err)
			}
			// The Codec and its pools are fit for use afterwards.
			if v, err := decode(c, payloadOf(t, id, "fine")); err != nil || v.Failure != "half decoded" {
				t.Error(id, v, err)
			}
		}
		c, _ := codec.New[rude](by(id), 0, limit, func(any) error { return caught{} })
		_, err := c.Encode(rude{"panic"})
		_, err2 := decode(c, payloadOf(t, id, "panic"))
		if id != codec.MsgPack && (err != caught{} || err2 != caught{}) {
			// that library makes errors of panics by itself
			t.Error(id, err, err2)
		}
		// Goexit ends the goroutine, as anywhere.
		for _, f := range []func(){
			func() { c.Encode(rude{"goexit"}) },
			func() { decode(c, payloadOf(t, id, "goexit")) },
		} {
			done, returned := make(chan bool), false
			go func() {
				defer close(done)
				f()
				returned = true
			}()
			if <-done; returned {
				t.Error(id, "came back")
			}
		}
		if v, err := decode(c, payloadOf(t, id, "fine")); err != nil || v.Failure != "half decoded" {
			t.Error(id, v, err)
		}
	}
}

type nilPanics struct{ N int }

func (n nilPanics) MarshalBinary() ([]byte, error)  { return []byte{byte(n.N)}, nil }
func (n *nilPanics) UnmarshalBinary(b []byte) error { n.N = int(b[0]); return nil }

func TestBinaryPointers(t *testing.T) {
	c := must[*nilPanics](t, codec.Binary)
	for _, v := range []*nilPanics{nil, {3}} {
		p, err := c.Encode(v)
		got, err2 := decode(c, p)
		if err != nil || err2 != nil || !reflect.DeepEqual(got, v) {
			t.Error(v, got, err, err2)
		}
	}
	if v, err := decode(c, codec.Payload{Codec: codec.Binary}); err == nil || v != nil { // b[0] panics
		t.Error(v, err)
	}
}

// No error shows what was encoded or decoded: it may be private.
func TestErrorsShowNoValue(t *testing.T) {
	type person struct {
		Age  int8
		Name string
		F    float64
		In   []int
	}
	seen := 0
	c := must[person](t, codec.MsgPack)
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack, codec.Binary, codec.Raw, 0, 9} {
		for _, b := range []string{
			`{"Age":987654}`, `{"Age":"SECRET"}`, `{"Name":987654}`, `{"In":{"SECRET":1}}`, `SECRET`, `{"Name":"SECRET`,
			`{"Name":"SECRET"}SECRET`,
			`{"SECRET`, `{"Age":9876.54}`, `"SECRET"`, `[987654]`, "{\"Name\":\"\x01SECRET\"}", `{"Age":1e987654}`,
			"\x81\xa3Age\xce\x00\x0f\x12\x06", "\x81\xa3Age\xa6SECRET", "\x81\xa2In\x81\xa6SECRET\x01", "\xa6SECRET",
			"\xd9\xffSECRET", "\x81\xa6SECRET\xc1",
			"\xc7\x06\x01SECRET", "\xd6\xffSECR",
		} {
			for _, compressed := range []bool{false, true} {
				v, err := decode(c, codec.Payload{Codec: id, Compressed: compressed, Bytes: []byte(b)})
				if err == nil {
					continue
				}
				seen++
				for _, bad := range []string{"SECR", "987654", "9876.54", "Age", "'", "\"", "0x"} {
					if strings.Contains(err.Error(), bad) {
						t.Errorf("%v %q: %v", id, b, err)
					}
				}
				if !reflect.DeepEqual(v, person{}) {
					t.Errorf("%v %q: %v", id, b, v)
				}
			}
		}
	}
	if seen < 200 {
		t.Error("only", seen, "errors")
	}
	for _, id := range []codec.ID{codec.JSON, codec.MsgPack} {
		for _, v := range []any{complex(987654, 1), map[string]any{"SECRET": make(chan int), "x": complex(987654, 1)},
			math.Inf(1)} {
			if _, err := must[any](t, id).Encode(v); err != nil && (strings.Contains(err.Error(), "SECRET") ||
				strings.Contains(err.Error(), "987654") || strings.Contains(err.Error(), "Inf")) {
				t.Error(err)
			}
		}
	}
}
