package zklock

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

// link is a connection to a server. go-zk does not expose the timeout that the server has granted
// to the session, so link reads it from the server's first reply. It also limits the time for
// that reply: go-zk would wait for it for many session timeouts.
//
// link hides the transaction number in the header of each reply. go-zk stores the last one without
// synchronization: its reader writes it while a new connection reads it to renew the watches. This
// data race fails tests of programs that use this package with -race, and can lose the deletion
// that a contender waits for. Without the number, go-zk renews the watches as of transaction 0, and
// the server reports each watched node as changed or deleted. The contenders then read the queue
// again and set new watches. go-zk also sends the number when it connects, so that a server that is
// behind rejects the connection. Without the number the client may read from such a server. So if
// attempt.step does not find its node, it calls attempt.contenders, which makes the server catch
// up, and then reads from the server over the same link.
type link struct {
	net.Conn
	client *client
	limit  time.Time // deadline of the first reply

	// Used by go-zk's connecting goroutine, and then by its reading goroutine.
	sent    time.Time // when the first request was sent
	greeted bool      // whether the first reply was read
	unread  []byte    // rest of a reply that go-zk has not read
}

// A reply begins with its length. The first reply then contains the protocol version, the session
// timeout in milliseconds, the session id, and more. Every later reply contains the request's
// number, the transaction number, and more.
const (
	lengthBytes = 4
	helloBytes  = lengthBytes + 4 + 4 + 8
	headBytes   = lengthBytes + 4 + 8
	maxReply    = 256 << 20 // far more than servers send
)

func (l *link) Write(b []byte) (int, error) {
	if l.sent.IsZero() {
		l.sent = time.Now()
	}
	return l.Conn.Write(b)
}

// Read returns the bytes of one whole reply after the other.
func (l *link) Read(b []byte) (n int, err error) {
	if len(l.unread) == 0 {
		if l.unread, err = l.readReply(); err != nil {
			return 0, err
		}
	}
	n = copy(b, l.unread)
	l.unread = l.unread[n:]
	return n, nil
}

var errBadReply = errors.New("not a reply of ZooKeeper")

// readReply reads the next reply.
func (l *link) readReply() ([]byte, error) {
	frame := make([]byte, lengthBytes, 128)
	if _, err := io.ReadFull(l.Conn, frame); err != nil {
		return nil, err
	}
	length, least := binary.BigEndian.Uint32(frame), uint32(headBytes)
	if !l.greeted {
		least = helloBytes
	}
	if length > maxReply || lengthBytes+length < least {
		return nil, errBadReply
	}
	frame = append(frame, make([]byte, length)...)
	if _, err := io.ReadFull(l.Conn, frame[lengthBytes:]); err != nil {
		return nil, err
	}
	if l.greeted {
		clear(frame[headBytes-8 : headBytes])
	} else {
		l.greeted = true
		timeout := time.Duration(int32(binary.BigEndian.Uint32(frame[8:]))) * time.Millisecond
		l.client.sessionGranted(l, int64(binary.BigEndian.Uint64(frame[12:])), timeout)
	}
	return frame, nil
}

func (l *link) SetReadDeadline(t time.Time) error {
	if !l.greeted && (t.IsZero() || t.After(l.limit)) {
		t = l.limit
	}
	return l.Conn.SetReadDeadline(t)
}

func (l *link) Close() error {
	l.client.linkClosed(l)
	return l.Conn.Close()
}

// cut closes the connection, if there is one. go-zk notices that and closes the link.
func (l *link) cut() {
	if l != nil {
		_ = l.Conn.Close() // it is not used again
	}
}
