package zklock

import (
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

// grace is how long a contender that gives up waits for its node to be deleted. As a rule it is
// deleted by then, and the next contender is not told that the lock is held.
const grace = 50 * time.Millisecond

// abandon deletes, in the background, the node that there may be: also one that is created only
// now, by a request that nobody waits for any more.
func (a *attempt) abandon() {
	if a.created == nil {
		return
	}
	done := make(chan struct{})
	if !a.d.background(func() { defer close(done); a.undo() }) {
		return
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// undo finds out what has become of the request for the node. Nothing of an old connection comes
// after a request by the next.
func (a *attempt) undo() {
	select {
	case <-a.created.done:
	case <-a.d.closing.Done():
		return
	}
	node, err := a.created.value, a.created.err
	for pause := 5 * time.Millisecond; err != nil && !answered(err); pause = min(2*pause, time.Second) {
		a.d.sleep(pause)
		if a.d.closing.Err() != nil {
			return
		}
		node, err = a.find(a.d.closing)
	}
	if err == nil && node != "" {
		a.d.remove(node, a.r.Timeout)
	}
}

// remove deletes a node, however long that takes.
func (d *zookeeper) remove(node string, timeout time.Duration) {
	for pause := 5 * time.Millisecond; d.closing.Err() == nil; pause = min(2*pause, time.Second) {
		_, err := do(d.closing, d.client, timeout, func(z *zk.Conn) (bool, error) { return true, z.Delete(node, -1) })
		if err == nil || errors.Is(err, zk.ErrNoNode) {
			d.parents.tidy(d.closing, node, timeout)
		}
		if answered(err) { // or it may not be deleted
			return
		}
		d.sleep(pause)
	}
}
