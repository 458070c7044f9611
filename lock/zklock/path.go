package zklock

import (
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"
)

// contender matches the name of a contender's node: "L1-", a random id, and the number that the
// server appends. The id identifies the node if the reply to its creation is lost. Nodes with
// other names are not contenders; other programs or users have created them.
var contender = regexp.MustCompile(`^L1-([A-Z2-7]{26})-(\d{10}|-\d{10})$`)

func newID() string { return rand.Text() }

func nodeName(id string) string { return "L1-" + id + "-" }

// place returns the id and the number in the name of a contender's node.
func place(name string) (id string, number int32, ok bool) {
	m := contender.FindStringSubmatch(name)
	if m == nil {
		return "", 0, false
	}
	n, err := strconv.ParseInt(m[2], 10, 32)
	return m[1], int32(n), err == nil
}

// before reports whether a was created before b. The 32-bit numbers wrap around, which happens
// after some years to a lock in heavy use.
func before(a, b int32) bool { return a-b < 0 }

// ahead returns the contender's node directly before the node with the given id, or "" if there
// is none. found reports whether the node with this id exists.
func ahead(children []string, id string) (predecessor string, found bool) {
	mine := slices.IndexFunc(children, func(name string) bool { i, _, ok := place(name); return ok && i == id })
	if mine < 0 {
		return "", false
	}
	_, number, _ := place(children[mine])
	var last int32
	for _, name := range children {
		if _, n, ok := place(name); ok && before(n, number) && (predecessor == "" || before(last, n)) {
			predecessor, last = name, n
		}
	}
	return predecessor, true
}

// createParents creates the node of a lock and its parents.
func (c *client) createParents(ctx context.Context, path string, timeout time.Duration) error {
	err := c.container(ctx, path, timeout)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			if err := c.persistent(ctx, path[:i], timeout); err != nil {
				return err
			}
		}
	}
	return c.container(ctx, path, timeout)
}

func (c *client) container(ctx context.Context, path string, timeout time.Duration) error {
	_, err := do(ctx, c, timeout,
		func(z *zk.Conn) (string, error) { return z.CreateContainer(path, nil, zk.FlagContainer, c.options.ACL) })
	return there(err)
}

func (c *client) persistent(ctx context.Context, path string, timeout time.Duration) error {
	_, err := do(ctx, c, timeout,
		func(z *zk.Conn) (string, error) { return z.Create(path, nil, zk.FlagPersistent, c.options.ACL) })
	if errors.Is(err, zk.ErrNoAuth) { // a client without the permission to create it may still use it
		if ok, e := do(ctx, c, timeout,
			func(z *zk.Conn) (bool, error) { ok, _, err := z.Exists(path); return ok, err }); e == nil && ok {
			return nil
		}
	}
	return there(err)
}

func there(err error) error {
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}
