package pglogical

import (
	"encoding/binary"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
)

// message appends numbers, texts (with a zero byte after each) and bytes.
func message(parts ...any) (b []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			b = append(b, p)
		case uint16:
			b = binary.BigEndian.AppendUint16(b, p)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, p)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, p)
		case string:
			b = append(append(b, p...), 0)
		case []byte:
			b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
			b = append(b, p...)
		}
	}
	return b
}

var (
	beginMessage    = message(byte('B'), uint64(1), uint64(2), uint32(3))
	relationMessage = message(byte('R'), uint32(1), "public", "users", byte('d'), uint16(2), byte(1), "id", uint32(23),
		uint32(0), byte(0), "doc", uint32(25), uint32(0))
	insertMessage = message(byte('I'), uint32(1), byte('N'), uint16(2), byte('t'), []byte("1"), byte('n'))
	updateMessage = message(byte('U'), uint32(1), byte('K'), uint16(2), byte('t'), []byte("1"), byte('n'), byte('N'),
		uint16(2), byte('t'), []byte("2"), byte('u'))
	deleteMessage   = message(byte('D'), uint32(1), byte('K'), uint16(2), byte('t'), []byte("1"), byte('n'))
	truncateMessage = message(byte('T'), uint32(1), byte(0), uint32(1))
	commitMessage   = message(byte('C'), byte(0), uint64(1), uint64(2), uint64(3))
)

var inPublic = &sourcetest.World{Schema: "public"}

func usersDecoder() decoder {
	return newDecoder(&catalog{}, nil,
		event.Need{Tables: map[event.Table][]string{{Schema: "public", Name: "users"}: {"id"}}})
}

func TestDecoder(t *testing.T) {
	d := usersDecoder()
	for _, m := range [][]byte{beginMessage, insertMessage, relationMessage, insertMessage, updateMessage,
		deleteMessage, truncateMessage, insertMessage[:9], insertMessage[:3],
		message(byte('I'), uint32(1), byte('N'), uint16(1), byte('t'), []byte("1")), message(byte('I'), uint32(1),
			byte('N'), uint16(2), byte('t'), []byte("1"), byte('b'), []byte("1"))} {
		if ended, err := d.decode(t.Context(), m); ended != 0 || err != nil {
			t.Fatal(ended, err)
		}
	}
	if ended, err := d.decode(t.Context(), commitMessage); ended != 2 || err != nil {
		t.Fatal(ended, err)
	}
	var got []string
	for _, c := range d.changes {
		got = append(got, inPublic.Text(c))
	}
	want := []string{"insert users: 1 NULL", "update users: 1 ? -> 2 ?", "delete users: 1 ?", "truncate users",
		"replace users unread", "replace users unread", "replace users unread"}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
	for _, m := range [][]byte{nil, beginMessage[:9], relationMessage[:20], truncateMessage[:6], {'x'}, {'S', 1}} {
		if _, err := d.decode(t.Context(), m); err == nil {
			t.Errorf("%q is read", m)
		}
	}
}

// For any input, the decoder does not panic. A row of a needed table that was described is a change
// of that table: no row is lost without a trace.
func FuzzDecoder(f *testing.F) {
	for _, m := range [][]byte{beginMessage, relationMessage, insertMessage, updateMessage, deleteMessage,
		truncateMessage, commitMessage, {}} {
		f.Add(m)
		f.Add(m[:len(m)/2])
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		d := usersDecoder()
		for _, b := range [][]byte{beginMessage, relationMessage} {
			if _, err := d.decode(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		if len(m) > 0 && m[0] == 'R' {
			if _, err := parseMessage(m); err == nil {
				return // its types may need a server
			}
		}
		before := len(d.changes)
		_, err := d.decode(t.Context(), m)
		isRow := len(m) >= 5 && (m[0] == 'I' || m[0] == 'U' || m[0] == 'D') && binary.BigEndian.Uint32(m[1:]) == 1
		if isRow && (err != nil || len(d.changes) != before+1) {
			t.Errorf("%v, %d changes", err, len(d.changes)-before)
		}
		for _, c := range d.changes {
			_ = inPublic.Text(c)
		}
	})
}
