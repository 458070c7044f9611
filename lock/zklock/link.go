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
// When the connection is lost, link lets go-zk read that all nodes that are watched have gone. So
// the contenders that wait look again, and go-zk has no watches to take along to the next
// connection. The client of Java has a switch for that (zookeeper.disableAutoWatchReset); go-zk has
// none, nor a call that drops a watch. It sends the number of the last transaction that it has seen
// with the watches that it takes along, while its reader changes that number: a data race, which
// ends tests of programs that use this package with -race, and can lose the deletion that a
// contender waits for. The ways around it that send no such answer cost users more: to poll passes
// a lock on tens of milliseconds late; watches on a second connection, thrown away with it, double
// the connections and the sessions of the fleet (servers allow 60 connections of one address by
// default); and a new session for each lost connection loses all locks with it. The answers never
// leave the process.
type link struct {
	net.Conn
	client *client
	limit  time.Time // of the first answer

	// Used by go-zk's one goroutine that connects, and then by the one that reads.
	sent  time.Time // when the first request was
	known bool      // the first answer was read
	frame []byte    // what is left to go-zk of an answer
	err   error     // the connection is lost
}

// An answer begins with its length. The first: the version of the protocol, the session's time-out
// in milliseconds, its id, and more.
const (
	lengthBytes = 4
	helloBytes  = lengthBytes + 4 + 4 + 8
	maxAnswer   = 256 << 20 // far more than what servers send
)

func (l *link) Write(b []byte) (int, error) {
	if l.sent.IsZero() {
		l.sent = time.Now()
	}
	return l.Conn.Write(b)
}

// Read reads of one whole answer after the other.
func (l *link) Read(b []byte) (int, error) {
	if len(l.frame) == 0 && l.err == nil {
		if l.frame, l.err = l.next(); l.err != nil && l.known {
			l.frame = l.client.watches.gone()
		}
	}
	if len(l.frame) == 0 {
		return 0, l.err
	}
	n := copy(b, l.frame)
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
	length := binary.BigEndian.Uint32(frame)
	if length > maxAnswer || !l.known && length < helloBytes-lengthBytes {
		return nil, errAnswer
	}
	frame = append(frame, make([]byte, length)...)
	if _, err := io.ReadFull(l.Conn, frame[lengthBytes:]); err != nil {
		return nil, err
	}
	if !l.known {
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
