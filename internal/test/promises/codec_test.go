package promises

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// inverse is a user's codec: JSON with all bits inverted, so that no other codec can read it.
type inverse struct{ number uint8 }

func (i inverse) Number() uint8 { return i.number }

func (inverse) Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return inverted(b), err
}

func (inverse) Decode(b []byte, v any) error { return json.Unmarshal(inverted(b), v) }

func inverted(b []byte) []byte {
	b = slices.Clone(b)
	for i := range b {
		b[i] ^= 0xff
	}
	return b
}

// An entry of an unknown codec is a miss, which is counted, logged and replaced. A loader with the
// codec can read the replacement. So if two codecs are in use and one is JSON, each write of a key
// costs one additional load.
func TestUnknownCodec(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		d := newTable(map[int]string{1: "one"})
		var log testenv.Log
		quiet := steadyNoMemory
		quiet.Logger = log.Logger()
		own := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Codec: inverse{9}})
		plain := start(t, b, d, quiet, nil)
		for i := range int64(3) {
			own.want(t, 1, "one", nil)
			if entry := b.admin.Get(t.Context(), redisKey(1)).Val(); entry[1]>>4 != 9 ||
				entry[32:] != string(inverted([]byte(`"one"`))) {
				t.Errorf("%q", entry)
			}
			for range 3 { // in turns: each replaces the other's entry only once
				plain.want(t, 1, "one", nil)
				own.want(t, 1, "one", nil)
			}
			if s := plain.Stats(); d.loads.Load() != 2*(i+1) || s.Undecodable != i+1 || s.RedisHits != 2*(i+1) {
				t.Errorf("%d loads, %+v", d.loads.Load(), s)
			}
			if s := own.Stats(); s.Undecodable != 0 || s.RedisHits != 3*(i+1) {
				t.Errorf("%+v", s)
			}
			if err := own.Invalidate(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		testenv.Eventually(t, "a warning that names the codec", func() bool {
			return slices.ContainsFunc(log.Take(), func(line string) bool {
				return strings.Contains(line,
					`msg="cacheaside: an entry in Redis is unreadable, and is replaced" loader=row error="codec: unknown codec 9"`)
			})
		})
	})
}

// An entry of another user's codec is a miss even if its bytes could be read.
func TestEntryOfAnotherUserCodecIsAMiss(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "one"})
	one := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Codec: bare{9}})
	other := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Codec: bare{10}})
	one.want(t, 1, "one", nil)
	other.want(t, 1, "one", nil)
	if s := other.Stats(); s.Undecodable != 1 || s.Loads != 1 || s.RedisHits != 0 {
		t.Errorf("%+v", s)
	}
}

// Entries of two user codecs with the same number cannot be distinguished. The result depends on
// Decode, here a miss.
func TestUserCodecsWithSameNumber(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "one"})
	one := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Codec: inverse{9}})
	other := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Codec: bare{9}})
	one.want(t, 1, "one", nil)
	other.want(t, 1, "one", nil)
	if s := other.Stats(); s.Undecodable != 1 || s.Loads != 1 {
		t.Errorf("%+v", s)
	}
}

// bare is JSON under a number of its own.
type bare struct{ number uint8 }

func (b bare) Number() uint8              { return b.number }
func (bare) Encode(v any) ([]byte, error) { return json.Marshal(v) }
func (bare) Decode(b []byte, v any) error { return json.Unmarshal(b, v) }

// told is a codec that fails on demand and counts its calls.
type told struct {
	bare
	how              string
	encodes, decodes int
}

func (t *told) do() error {
	switch t.how {
	case "panic":
		panic("SECRET")
	case "error":
		return errors.New("SECRET")
	}
	return nil
}

func (t *told) Encode(v any) ([]byte, error) {
	t.encodes++
	if err := t.do(); err != nil {
		return nil, err
	}
	return t.bare.Encode(v)
}

func (t *told) Decode(b []byte, v any) error {
	t.decodes++
	if err := t.do(); err != nil {
		return err
	}
	return t.bare.Decode(b, v)
}

// A user's codec that panics or fails while encoding fails the load and leaves no lease behind.
// While decoding, it causes a counted miss.
func TestFailingUserCodec(t *testing.T) {
	for _, how := range []string{"panic", "error"} {
		t.Run(how, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "one"})
			c := &told{bare: bare{8}, how: how}
			p := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Codec: c, ErrorTTL: time.Hour})
			_, err := p.Get(t.Context(), 1)
			if _, panicked := errors.AsType[*cacheaside.PanicError](err); err == nil || panicked != (how == "panic") ||
				strings.Contains(err.Error(), "SECRET") {
				t.Error(err)
			}
			p.want(t, 1, "", cacheaside.ErrLoadFailed) // a marker informs the fleet
			if err := p.Invalidate(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			c.how = ""
			p.want(t, 1, "one", nil)
			reads := &told{bare: bare{8}, how: how}
			q := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Codec: reads, ErrorTTL: time.Hour})
			if _, err := q.Get(t.Context(), 1); err == nil {
				t.Error("the value is encoded")
			}
			if s := q.Stats(); s.Undecodable != 1 || reads.decodes != 1 || reads.encodes != 1 {
				t.Errorf("%+v, %d decoded, %d encoded", s, reads.decodes, reads.encodes)
			}
		})
	}
}

// MaxValueBytes applies to a user's codec: longer values are returned and not stored. Its Decode
// never gets more, even from compressed entries.
func TestMaxValueBytesWithUserCodec(t *testing.T) {
	_, b := embedded(t)
	fits, long := strings.Repeat("x", 98), strings.Repeat("x", 99) // and two quotes
	d := newTable(map[int]string{1: fits, 2: long})
	for _, above := range []int{0, 10} {
		c := &told{bare: bare{8}}
		version := fmt.Sprint(above)
		p := start(t, b, d, steadyNoMemory,
			&cacheaside.LoaderOptions{Codec: c, MaxValueBytes: 100, CompressAbove: above, Version: version})
		for range 2 {
			p.want(t, 1, fits, nil)
			p.want(t, 2, long, nil)
		}
		if s := p.Stats(); s.TooLarge != 2 || s.Loads != 3 || s.RedisHits != 1 {
			t.Errorf("%+v", s)
		}
		wide := start(t, b, d, steadyNoMemory,
			&cacheaside.LoaderOptions{Codec: &told{bare: bare{8}}, CompressAbove: above, Version: version})
		if _, err := wide.Refresh(t.Context(), 2); err != nil { // is stored
			t.Fatal(err)
		}
		decodes := c.decodes
		p.want(t, 2, long, nil)
		if s := p.Stats(); s.Undecodable != 1 || s.TooLarge != 3 || c.decodes != decodes {
			t.Errorf("%+v, %d decoded", s, c.decodes-decodes)
		}
	}
}
