package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// Operations of ZooKeeper's protocol.
const (
	opSync     = 9
	opChildren = 12
)

// dying is a connection on which nothing is sent after Sync. Its reply is read even after Close.
type dying struct {
	net.Conn
	synced, closed chan struct{} // Sync was sent; the connection was closed
	once           sync.Once
}

func (d *dying) Write(b []byte) (int, error) {
	select {
	case <-d.synced:
		return 0, net.ErrClosed
	default:
	}
	n, err := d.Conn.Write(b)
	if len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == opSync {
		close(d.synced)
	}
	return n, err
}

func (d *dying) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// serve replies to all requests like a ZooKeeper without nodes. It calls before with each
// operation, and ends after an operation for which that returns true.
func serve(conn net.Conn, before func(op uint32) (last bool)) {
	defer conn.Close()
	for greeted := false; ; greeted = true {
		head := make([]byte, 4)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		request := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(conn, request); err != nil {
			return
		}
		reply, last := make([]byte, 4), false
		if !greeted { // version, session timeout, session, password
			reply = binary.BigEndian.AppendUint32(reply, 0)
			reply = binary.BigEndian.AppendUint32(reply, uint32(calmTimeout.Milliseconds()))
			reply = binary.BigEndian.AppendUint64(reply, 1)
			reply = binary.BigEndian.AppendUint32(reply, 16)
			reply = append(reply, make([]byte, 16)...)
		} else { // number of the request, of the transaction, error; then at most a list and a Stat
			last = before(binary.BigEndian.Uint32(request[4:]))
			reply = append(append(reply, request[:4]...), make([]byte, 8+4+4+68)...)
		}
		binary.BigEndian.PutUint32(reply, uint32(len(reply)-4))
		if _, err := conn.Write(reply); err != nil || last {
			return
		}
	}
}

const calmTimeout = 5 * time.Minute

// TestContendersOfTwoServers: go-zk sends Sync to one server and then, because the connection was
// lost, Children to the next. That server may be behind, so its list is not used.
func TestContendersOfTwoServers(t *testing.T) {
	first := &dying{synced: make(chan struct{}), closed: make(chan struct{})}
	var connections, lists atomic.Int32
	o := Options{SessionTimeout: calmTimeout, Options: lock.Options{Timeout: testenv.Hang}}
	o.Dial = func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		if connections.Add(1) > 1 {
			go serve(far, func(op uint32) bool {
				if op == opChildren {
					lists.Add(1)
				}
				return false
			})
			return near, nil
		}
		first.Conn = near
		go serve(far, func(op uint32) bool {
			if op == opSync {
				<-first.closed
			}
			return op == opSync
		})
		return first, nil
	}
	c := newClient([]string{"nowhere:1"}, o.withDefaults())
	defer c.Close()
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	a := &attempt{client: c, r: driver.Request{Timeout: testenv.Hang}, parent: "/a"}
	asked := make(chan error, 1)
	go func() {
		_, err := a.contenders(t.Context())
		asked <- err
	}()
	testenv.Receive(t, "Sync", first.synced)
	// By the next request, go-zk notices that it cannot send any more. Then it reads the reply to
	// Sync.
	do(t.Context(), c, testenv.Hang, func(z *zk.Conn) (bool, error) { ok, _, err := z.Exists("/"); return ok, err })
	if err := testenv.Receive(t, "the end of contenders", asked); !errors.Is(err, errNoConnection) {
		t.Errorf("contenders of two servers: %v", err)
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("the second server receives %d requests, want 1", n)
	}
	if _, err := a.contenders(t.Context()); err != nil {
		t.Errorf("contenders of one server: %v", err)
	}
}
