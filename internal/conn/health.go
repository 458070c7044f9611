package conn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/noanswer"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// ErrDown is the error of a command that was not sent, since those before it have failed.
var ErrDown = errors.New("not asked, since it is unreachable")

// outAfter is how many commands in a row may fail before a range of keys is taken to be out of
// reach: one may be an accident.
const outAfter = 3

// probeEvery is about how often a server that is out of reach is asked whether it is back.
const probeEvery = 200 * time.Millisecond

// health is what is known of the servers: a breaker for each range of keys, so that a node of a
// cluster that is lost concerns only its own. (A range that two nodes share is lost with either of
// them.) It stands on the way of each hit in Redis: while all is well that reads one word, and
// writes nothing.
type health struct {
	ranges [Ranges]atomic.Pointer[trouble] // nil: all is well
	_      [64]byte

	bound time.Duration // of a probe; 0: there are none
	tell  func(error)   // see OnTrouble; may be nil
}

// trouble is what has failed in a range of keys; it is not changed.
type trouble struct {
	failures int
	err      error // for commands that are not sent, if there were too many
}

// Watch stops commands from being sent where those before have failed, and asks there by itself,
// with keys under this prefix, whether the server is back; each time for no longer than bound. It
// is called before anything is sent.
func (c *Conn) Watch(prefix string, bound time.Duration) {
	c.prefix, c.health.bound = prefix, bound
}

// OnTrouble has tell be told why a range of keys is out of reach, and by nil that it is back:
// quickly, for commands wait for that. It is called before anything is sent, if at all.
func (c *Conn) OnTrouble(tell func(err error)) { c.health.tell = tell }

func (c *Conn) told(err error) {
	if c.health.tell != nil {
		c.health.tell(err)
	}
}

// Out is how many ranges of keys are not to be asked now.
func (c *Conn) Out() (n int) {
	for r := range c.InUse() {
		if c.Down(r) != nil {
			n++
		}
	}
	return n
}

// Down answers why a range of keys is not to be asked now, nil if it may be.
func (c *Conn) Down(r int) error {
	t := c.health.ranges[r].Load()
	if t == nil || t.failures < outAfter {
		return nil
	}
	return t.err
}

// Failed notes that a command on key has failed. ctx is that of its caller: the end of ctx is no
// fault of Redis.
func (c *Conn) Failed(ctx context.Context, key string, err error) {
	if Unable(err) && (IsReply(err) || noanswer.Ended(ctx) == nil) {
		c.failed(c.Range(key), key, err)
	}
}

// Acknowledged notes that a server has just carried out a write: it serves again, whatever was
// noted before.
func (c *Conn) Acknowledged(key string) {
	if t := &c.health.ranges[c.Range(key)]; t.Load() != nil {
		if before := t.Swap(nil); before != nil && before.failures >= outAfter {
			c.told(nil)
		}
	}
}

// Note is for commands that were sent together by Process: it takes into account what has become of
// them.
func (c *Conn) Note(ctx context.Context, cmds []redis.Cmder) { c.note(ctx, cmds, nil) }

// note does; whole is the error of all, if it is not nil. One trip is one failure, however many
// commands were in it.
func (c *Conn) note(ctx context.Context, cmds []redis.Cmder, whole error) {
	if c.health.bound == 0 || whole == nil && c.quiet() && !anyUnable(cmds) {
		return
	}
	var answered, failed [Ranges]bool
	for _, cmd := range cmds {
		err := whole
		if err == nil {
			err = cmd.Err()
		}
		r := c.Range(keyOf(cmd))
		switch {
		case !Unable(err) && (err == nil || IsReply(err)):
			answered[r] = true
		case !failed[r]:
			failed[r] = true
			c.Failed(ctx, keyOf(cmd), err)
		}
	}
	for r := range answered {
		if answered[r] && !failed[r] {
			c.answered(r)
		}
	}
}

// quiet tells whether nothing has failed lately.
func (c *Conn) quiet() bool {
	for r := range c.InUse() {
		if c.health.ranges[r].Load() != nil {
			return false
		}
	}
	return true
}

func anyUnable(cmds []redis.Cmder) bool {
	for _, cmd := range cmds {
		if Unable(cmd.Err()) {
			return true
		}
	}
	return false
}

func (c *Conn) answered(r int) {
	now := &c.health.ranges[r]
	if t := now.Load(); t != nil && t.failures < outAfter {
		now.CompareAndSwap(t, nil)
	}
}

// failed records a failure. It opens the breaker after outAfter failures in a row, or at once if
// the error is certain.
func (c *Conn) failed(r int, key string, err error) {
	if c.health.bound == 0 {
		return
	}
	for now := &c.health.ranges[r]; ; {
		before, t := now.Load(), &trouble{failures: 1, err: fmt.Errorf("%w: %w", ErrDown, err)}
		if before != nil {
			t.failures += before.failures
		}
		if certain(err) {
			t.failures = max(t.failures, outAfter)
		}
		if before != nil && before.failures >= outAfter {
			return // it is being probed
		}
		if now.CompareAndSwap(before, t) {
			if t.failures >= outAfter {
				c.told(t.err)
				c.Apart(func() { c.probe(now, t, c.probeKey(key)) })
			}
			return
		}
	}
}

// probe asks at once, and again and again, until the server answers, or the trouble is over
// otherwise, or Close.
func (c *Conn) probe(now *atomic.Pointer[trouble], t *trouble, key string) {
	for now.Load() == t {
		if c.serves(key) {
			if now.CompareAndSwap(t, nil) {
				c.told(nil)
			}
			return
		}
		if retry.Sleep(c.life, probeEvery*3/4+rand.N(probeEvery/4)) != nil { // processes do not ask in step
			return
		}
	}
}

// probeKey is a key in the slot of the one that has failed, which is never there.
func (c *Conn) probeKey(key string) string { return c.prefix + "::probe:{" + tag(key) + "}" }

// serves asks for a write that changes nothing: a server that only answers reads may be a replica.
// It needs no memory, which may be full. It returns when the command has, which may be long after
// its time-out where the client does not keep deadlines, or at Close: so no more than one is under
// way, and probes do not use up the client's connections.
func (c *Conn) serves(key string) bool {
	cmd := redis.NewIntCmd(c.life, "persist", key)
	cmd.SetErr(NotReturned(nil)) // until it has
	err := c.Await(c.life, func(life context.Context) {
		ctx, cancel := context.WithTimeout(life, c.health.bound)
		defer cancel()
		c.Process(ctx, []redis.Cmder{cmd})
	})
	return err == nil && !Unable(cmd.Err())
}

// Refused notes that the server of key has refused a write with this error, as Failed does, and
// reports whether err is such a refusal. A write that was not acknowledged in time is none: it may
// have been a large one, which is no trouble of Redis.
func (c *Conn) Refused(ctx context.Context, key string, err error) bool {
	refused := Unable(err) && (IsReply(err) || certain(err))
	if refused {
		c.Failed(ctx, key, err)
	}
	return refused
}
