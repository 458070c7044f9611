package lease

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// corpus are valid and invalid contents of a key.
var corpus = [][]byte{
	{},
	{failedByte},
	{failedByte, 0},
	{unstorableByte, byte(TooLarge)},
	{unstorableByte, 0},
	appendLease(nil, corpusToken),
	append(appendLease(nil, corpusToken), 0),
	appendEntry(nil, Entry{}),
	appendEntry(nil, Entry{Null: true, Claimed: true, Codec: 15, Stamp: corpusToken, Expiry: time.UnixMilli(1<<48 - 1),
		Cost: time.Hour, Payload: []byte("v")}),
	appendEntry(nil, Entry{Codec: 1})[:headerSize-1],
	appendEntry(nil, Entry{Codec: 1, Grouped: true, Known: 1 << 52, Groups: groups.SetOf(1, 1<<63),
		Payload: []byte("v")}),
	appendEntry(nil, Entry{Null: true, Grouped: true, Claimed: true}),
	appendEntry(nil, Entry{Codec: 1, Grouped: true, Groups: make([]byte, 8*MaxGroups)}),
	appendEntry(nil, Entry{Codec: 1, Grouped: true, Groups: make([]byte, 8*MaxGroups+8)}), // too many
	appendEntry(nil, Entry{Codec: 1, Grouped: true, Groups: groups.SetOf(1, 2)})[:headerSize+groupsHead+15],
	appendEntry(nil, Entry{Codec: 4, Compressed: true, Keyed: true, Key: "a long key", Payload: []byte("v")}),
	[]byte("\xe2\x00 an entry of another version of the format"),
}

var corpusToken = Token{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}

func FuzzDecode(f *testing.F) {
	for _, b := range corpus {
		f.Add(b)
	}
	f.Fuzz(checkDecode)
}

// The same for millions of inputs, without a look at what they cover.
func TestDecodeMillions(t *testing.T) {
	n := 50_000
	if testenv.Accepting {
		n = 5_000_000
	}
	for b := range testenv.Noise(1, n, corpus...) {
		if checkDecode(t, b); t.Failed() {
			t.Fatalf("%x", b)
		}
	}
	t.Logf("%d inputs", n)
}

// checkDecode decodes b, and asserts that it is either recognised without loss, or unknown.
func checkDecode(t *testing.T, b []byte) {
	s := Decode(b)
	if !bytes.Equal(s.Raw, b) {
		t.Errorf("raw is %x", s.Raw)
	}
	switch s.Kind {
	case Stored:
		if again := appendEntry(nil, s.Entry); !bytes.Equal(again, b) { // a keyed entry's key is still in its payload
			t.Errorf("encoded again: %x", again)
		}
	case Busy:
		again := appendLease(nil, s.Token)
		again[1] = b[1] // a lease's second byte is not looked at
		if !bytes.Equal(again, b) {
			t.Errorf("encoded again: %x", again)
		}
	case Failed:
		if len(b) != 1 {
			t.Error("a long marker")
		}
	case Unstorable:
		if !bytes.Equal(b, []byte{unstorableByte, byte(s.Reason)}) || s.Reason == 0 {
			t.Errorf("a marker with reason %d", s.Reason)
		}
	case Unknown:
		grouped := len(b) >= headerSize && b[1]&0xF0 == 0 && b[1]&flagNull == 0 // perhaps cut, or with too many groups
		if len(b) >= headerSize && b[0] == entryByte && !grouped || len(b) == leaseSize && b[0] == leaseByte {
			t.Error("it was not recognised")
		}
	default:
		t.Errorf("kind %d", s.Kind)
	}
	if len(b) > headerSize { // any bytes survive a round trip as an entry
		want := Entry{
			Null: b[0]&1 != 0, Claimed: b[0]&2 != 0, Compressed: b[0]&4 != 0, Codec: b[0] >> 4, Stamp: Token(b[1:13]),
			Expiry:  time.UnixMilli(int64(b[13])<<40 | int64(b[14])<<8 | int64(b[15])),
			Cost:    time.Duration(int(b[16])<<16|int(b[17])) * time.Microsecond,
			Payload: b[18:],
		}
		if want.Grouped = want.Codec == 0 && !want.Null || b[17]&1 != 0; want.Grouped { // a codec of 0 means groups
			n := 8 * min(MaxGroups, len(want.Payload)/8)
			want.Known, want.Groups, want.Payload = uint64(b[14])<<56|uint64(b[17]), want.Payload[:n], want.Payload[n:]
		}
		if want.Claimed {
			want.Cost, want.ClaimEnds = 0, uint32(b[16])<<16|uint32(b[17])
		}
		got := Decode(appendEntry(nil, want))
		if got.Kind != Stored {
			t.Fatalf("kind %d", got.Kind)
		}
		sameEntry(t, got.Entry, want)
	}
}

func TestDecodeKnowsItsOwnFormatOnly(t *testing.T) {
	entry := appendEntry(nil, Entry{Codec: 4, Payload: []byte("v")})
	for flags := range 256 {
		if entry[1] = byte(flags); flags&0xF2 == 0 {
			if s := Decode(entry); s.Kind != Unknown {
				t.Errorf("no codec, and no groups: %+v", s)
			}
			continue
		}
		s := Decode(entry)
		e := s.Entry
		got := [...]any{s.Kind, e.Claimed, e.Null, e.Compressed, e.Keyed, int(e.Codec)}
		if want := [...]any{Stored, flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0, flags >> 4}; got != want {
			t.Errorf("flags %#x: %v", flags, got)
		}
	}
	for first := range 256 {
		for _, length := range []int{1, 2, leaseSize, headerSize, headerSize + 1} {
			b := make([]byte, length)
			b[0] = byte(first)
			if length > 1 {
				b[1] = flagNull
			}
			want := Unknown
			switch {
			case first == entryByte && length >= headerSize:
				want = Stored
			case first == leaseByte && length == leaseSize:
				want = Busy
			case first == markByte && length == leaseSize:
				want = Held
			case first == failedByte && length == 1:
				want = Failed
			case first == unstorableByte && length == 2:
				want = Unstorable
			}
			if s := Decode(b); s.Kind != want {
				t.Errorf("first byte %#x, length %d: kind %d, want %d", first, length, s.Kind, want)
			}
		}
	}
}

func TestEntryKeepsWhatItsFieldsCanHold(t *testing.T) {
	for name, c := range map[string]struct{ in, want Entry }{
		"before 1970":   {Entry{Codec: 1, Expiry: time.UnixMilli(-1)}, Entry{Codec: 1, Expiry: time.UnixMilli(0)}},
		"no time":       {Entry{Codec: 1}, Entry{Codec: 1, Expiry: time.UnixMilli(0)}},
		"below 1 ms":    {Entry{Codec: 1, Expiry: time.Unix(1, 999_999)}, Entry{Codec: 1, Expiry: time.Unix(1, 0)}},
		"negative cost": {Entry{Codec: 1, Cost: -time.Second}, Entry{Codec: 1, Expiry: time.UnixMilli(0)}},
		"huge cost":     {Entry{Codec: 1, Cost: 48 * time.Hour}, Entry{Codec: 1, Expiry: time.UnixMilli(0), Cost: math.MaxUint32 * time.Microsecond}},
	} {
		t.Run(name, func(t *testing.T) {
			sameEntry(t, Decode(appendEntry(nil, c.in)).Entry, c.want)
		})
	}
}

func TestTokensDiffer(t *testing.T) {
	seen := map[Token]bool{}
	for range 10000 {
		token := newToken()
		if seen[token] || token == (Token{}) {
			t.Fatalf("the token %v came twice", token)
		}
		seen[token] = true
	}
}
