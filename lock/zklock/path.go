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

// A contender's node is called "L1-", an id of its own by which it is found if the reply of its
// creation is lost, and the number that the server gives it. A node called otherwise is no
// contender: it is of another recipe, or was put there by somebody.
var contender = regexp.MustCompile(`^L1-([A-Z2-7]{26})-(\d{10}|-\d{10})$`)

func newID() string { return rand.Text() }

func nodeName(id string) string { return "L1-" + id + "-" }

// place returns the id and the number of a contender's node.
func place(name string) (id string, number int32, ok bool) {
	m := contender.FindStringSubmatch(name)
	if m == nil {
		return "", 0, false
	}
	n, err := strconv.ParseInt(m[2], 10, 32)
	return m[1], int32(n), err == nil
}

// before reports whether a was created before b: they are numbered by 32 bits, which a lock in much
// use has seen all of after some years.
func before(a, b int32) bool { return a-b < 0 }

// ahead returns the contender's node right before the node of this id: "" if there is none. found
// reports whether the node of this id is there at all.
func ahead(children []string, id string) (predecessor string, found bool) {
	mine := slices.IndexFunc(children, func(name string) bool { i, _, ok := place(name); return ok && i == id })
	if mine < 0 {
		return "", false
	}
	_, own, _ := place(children[mine])
	var last int32
	for _, name := range children {
		if _, n, ok := place(name); ok && before(n, own) && (predecessor == "" || before(last, n)) {
			predecessor, last = name, n
		}
	}
	return predecessor, true
}

// createParents creates the node of a lock, and those above it.
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
	_, err := do(ctx, c, timeout, func(z *zk.Conn) (string, error) { return z.CreateContainer(path, nil, zk.FlagContainer, c.options.ACL) })
	return there(err)
}

func (c *client) persistent(ctx context.Context, path string, timeout time.Duration) error {
	_, err := do(ctx, c, timeout, func(z *zk.Conn) (string, error) { return z.Create(path, nil, zk.FlagPersistent, c.options.ACL) })
	if errors.Is(err, zk.ErrNoAuth) { // a client that may not create it may use it, if it is there
		if ok, e := do(ctx, c, timeout, func(z *zk.Conn) (bool, error) { ok, _, err := z.Exists(path); return ok, err }); e == nil && ok {
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
