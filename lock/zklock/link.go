package zklock

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

// link is a connection to a server. go-zk does not show what the server has granted to the session,
// so link reads it in the server's first answer; and it makes that answer come in time: go-zk would
// wait for it for many times as long as the session lives.
//
// link hides the transaction number in the head of each answer. go-zk keeps the last one without
// synchronisation: its reader writes it while a new connection reads it to renew the watches. That
// is a data race, which ends tests of programs that use this package with -race, and can lose the
// deletion that a contender waits for. Without the number, go-zk renews the watches as of
// transaction 0, and the server reports each watched node as changed or deleted. So the contenders
// look again, and watch anew. go-zk also names the number when it connects, so that a server that
// is behind refuses it. Without the number such a server may be read: see attempt.step.
type link struct {
	net.Conn
	client *client
	limit  time.Time // of the first answer

	// Used by go-zk's one goroutine that connects, and then by the one that reads.
	sent  time.Time // when the first request was
	known bool      // the first answer was read
	frame []byte    // what is left to go-zk of an answer
}

// An answer begins with its length. In the first there follow the version of the protocol, the
// session's time-out in milliseconds, its id, and more; in the others the number of the request,
// that of the transaction, and more.
const (
	lengthBytes = 4
	helloBytes  = lengthBytes + 4 + 4 + 8
	headBytes   = lengthBytes + 4 + 8
	maxAnswer   = 256 << 20 // far more than what servers send
)

func (l *link) Write(b []byte) (int, error) {
	if l.sent.IsZero() {
		l.sent = time.Now()
	}
	return l.Conn.Write(b)
}

// Read reads of one whole answer after the other.
func (l *link) Read(b []byte) (n int, err error) {
	if len(l.frame) == 0 {
		if l.frame, err = l.next(); err != nil {
			return 0, err
		}
	}
	n = copy(b, l.frame)
	l.frame = l.frame[n:]
	return n, nil
}

var errAnswer = errors.New("not an answer of ZooKeeper")

// next is the next answer.
func (l *link) next() ([]byte, error) {
	frame := make([]byte, lengthBytes, 128)
	if _, err := io.ReadFull(l.Conn, frame); err != nil {
		return nil, err
	}
	length, least := binary.BigEndian.Uint32(frame), uint32(headBytes)
	if !l.known {
		least = helloBytes
	}
	if length > maxAnswer || lengthBytes+length < least {
		return nil, errAnswer
	}
	frame = append(frame, make([]byte, length)...)
	if _, err := io.ReadFull(l.Conn, frame[lengthBytes:]); err != nil {
		return nil, err
	}
	if l.known {
		clear(frame[headBytes-8 : headBytes])
	} else {
		l.known = true
		timeout := time.Duration(int32(binary.BigEndian.Uint32(frame[8:]))) * time.Millisecond
		l.client.greeted(l, int64(binary.BigEndian.Uint64(frame[12:])), timeout)
	}
	return frame, nil
}

func (l *link) SetReadDeadline(t time.Time) error {
	if !l.known && (t.IsZero() || t.After(l.limit)) {
		t = l.limit
	}
	return l.Conn.SetReadDeadline(t)
}

func (l *link) Close() error {
	l.client.left(l)
	return l.Conn.Close()
}

// cut closes the connection, if there is one. go-zk notices that, and closes the link.
func (l *link) cut() {
	if l != nil {
		_ = l.Conn.Close() // it has no more use
	}
}
