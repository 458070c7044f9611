package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

// parents makes the nodes that locks are below.
type parents struct {
	client *client
	root   string
	acl    []zk.ACL
}

func (p *parents) path(key string) string { return p.root + "/" + escape(key) }

// create makes the node of a lock, and those above it.
func (p *parents) create(ctx context.Context, path string, timeout time.Duration) error {
	err := p.container(ctx, path, timeout)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			if err := p.persistent(ctx, path[:i], timeout); err != nil {
				return err
			}
		}
	}
	return p.container(ctx, path, timeout)
}

func (p *parents) container(ctx context.Context, path string, timeout time.Duration) error {
	_, err := do(ctx, p.client, timeout, func(z *zk.Conn) (string, error) { return z.CreateContainer(path, nil, zk.FlagContainer, p.acl) })
	return there(err)
}

func (p *parents) persistent(ctx context.Context, path string, timeout time.Duration) error {
	_, err := do(ctx, p.client, timeout, func(z *zk.Conn) (string, error) { return z.Create(path, nil, zk.FlagPersistent, p.acl) })
	if errors.Is(err, zk.ErrNoAuth) { // a client that may not create it may use it, if it is there
		if ok, e := do(ctx, p.client, timeout, func(z *zk.Conn) (bool, error) { ok, _, err := z.Exists(path); return ok, err }); e == nil && ok {
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
