package zklock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// parents makes the nodes that locks are below.
type parents struct {
	client *client
	root   string
	acl    []zk.ACL
	plain  atomic.Bool // the servers are too old for containers
}

func (p *parents) path(key string) string { return p.root + "/" + escape(key) }

// create makes the node of a lock, and those above it.
func (p *parents) create(ctx context.Context, path string, timeout time.Duration) error {
	err := p.container(ctx, path, timeout)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for i := range p.root {
		if i > 0 && p.root[i] == '/' {
			if err := p.persistent(ctx, p.root[:i], timeout); err != nil {
				return err
			}
		}
	}
	if err := p.persistent(ctx, p.root, timeout); err != nil {
		return err
	}
	return p.container(ctx, path, timeout)
}

func (p *parents) container(ctx context.Context, path string, timeout time.Duration) error {
	if p.plain.Load() {
		return p.persistent(ctx, path, timeout)
	}
	_, err := do(ctx, p.client, timeout, func(z *zk.Conn) (string, error) { return z.CreateContainer(path, nil, zk.FlagContainer, p.acl) })
	if unimplemented(err) {
		p.plain.Store(true)
		return p.persistent(ctx, path, timeout)
	}
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

// tidy deletes the parent of a node that is gone, where the servers do not do it themselves. It
// fails where there are other nodes below it.
func (p *parents) tidy(ctx context.Context, node string, timeout time.Duration) {
	if !p.plain.Load() {
		return
	}
	path := node[:strings.LastIndexByte(node, '/')]
	_, _ = do(ctx, p.client, timeout, func(z *zk.Conn) (bool, error) { return true, z.Delete(path, -1) })
}
