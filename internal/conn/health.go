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

// ErrDown is the error of a command that was not sent because the breaker of its range is open.
var ErrDown = errors.New("command not sent, because Redis is down")

// openAfter is the number of consecutive failures that open a breaker. A single failure may be an
// accident.
const openAfter = 3

// probeInterval is the maximum pause between two probes of a server that is down.
const probeInterval = 200 * time.Millisecond

// health has a breaker for each range of slots, so that a failed node of a cluster affects only
// its own ranges. (A range that two nodes share is lost with either of them.) The breaker is on
// the path of each hit in Redis. While Redis works, it costs the read of one word, and nothing is
// written.
type health struct {
	ranges [Ranges]atomic.Pointer[breakerState] // nil if the last command succeeded
	_      [64]byte

	bound    time.Duration // the timeout of a probe; 0 if there are no breakers
	onChange func(error)   // see OnTrouble; may be nil
}

// A breakerState records the failures of a range. It is immutable.
type breakerState struct {
	failures int
	err      error // the error of commands that are not sent while the breaker is open
}

// Watch enables the breakers: after failures in a range, commands to it are not sent. Until the
// server is back, c probes it with keys under this prefix; bound is the timeout of a probe. Watch
// must be called before any command is sent.
func (c *Conn) Watch(prefix string, bound time.Duration) {
	c.prefix, c.health.bound = prefix, bound
}

// OnTrouble sets a function that is called with the reason when a breaker opens, and with nil
// when it closes. f must return quickly, because commands wait for it. OnTrouble must be called
// before any command is sent.
func (c *Conn) OnTrouble(f func(err error)) { c.health.onChange = f }

func (c *Conn) notify(err error) {
	if c.health.onChange != nil {
		c.health.onChange(err)
	}
}

// Out returns the number of ranges whose breaker is open.
func (c *Conn) Out() (n int) {
	for r := range c.InUse() {
		if c.Down(r) != nil {
			n++
		}
	}
	return n
}

// Down returns nil if commands may be sent to range r. If its breaker is open, Down returns the
// reason.
func (c *Conn) Down(r int) error {
	t := c.health.ranges[r].Load()
	if t == nil || t.failures < openAfter {
		return nil
	}
	return t.err
}

// DownFor is Down for the range of the key of a command.
func (c *Conn) DownFor(cmd redis.Cmder) error { return c.Down(c.Range(keyOf(cmd))) }

// Failed records that a command on key has failed with err. ctx is that of the caller: its end is
// not a failure of Redis.
func (c *Conn) Failed(ctx context.Context, key string, err error) {
	if Unable(err) && (IsReply(err) || noanswer.ContextErr(ctx) == nil) {
		c.failed(c.Range(key), key, err)
	}
}

// Acknowledged records that the server of key has just carried out a write. It closes the
// breaker, regardless of earlier failures.
func (c *Conn) Acknowledged(key string) {
	if t := &c.health.ranges[c.Range(key)]; t.Load() != nil {
		if before := t.Swap(nil); before != nil && before.failures >= openAfter {
			c.notify(nil)
		}
	}
}

// Note records the results of commands that were sent together by Process.
func (c *Conn) Note(ctx context.Context, cmds []redis.Cmder) { c.record(ctx, cmds, nil) }

// record records the results of commands that were sent together. If whole is not nil, it is the
// error of all. One trip is one failure, regardless of its number of commands.
func (c *Conn) record(ctx context.Context, cmds []redis.Cmder, whole error) {
	if c.health.bound == 0 || whole == nil && c.healthy() && !anyUnable(cmds) {
		return
	}
	var succeeded, failed [Ranges]bool
	for _, cmd := range cmds {
		err := whole
		if err == nil {
			err = cmd.Err()
		}
		r := c.Range(keyOf(cmd))
		switch {
		case !Unable(err) && (err == nil || IsReply(err)):
			succeeded[r] = true
		case !failed[r]:
			failed[r] = true
			c.Failed(ctx, keyOf(cmd), err)
		}
	}
	for r := range succeeded {
		if succeeded[r] && !failed[r] {
			c.succeeded(r)
		}
	}
}

// healthy reports whether no range has a recorded failure.
func (c *Conn) healthy() bool {
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

// succeeded resets the failures of range r, unless its breaker is open.
func (c *Conn) succeeded(r int) {
	now := &c.health.ranges[r]
	if t := now.Load(); t != nil && t.failures < openAfter {
		now.CompareAndSwap(t, nil)
	}
}

// failed records a failure. It opens the breaker after openAfter consecutive failures, or
// immediately if the error is conclusive.
func (c *Conn) failed(r int, key string, err error) {
	if c.health.bound == 0 {
		return
	}
	for now := &c.health.ranges[r]; ; {
		before, t := now.Load(), &breakerState{failures: 1, err: fmt.Errorf("%w: %w", ErrDown, err)}
		if before != nil {
			t.failures += before.failures
		}
		if conclusive(err) {
			t.failures = max(t.failures, openAfter)
		}
		if before != nil && before.failures >= openAfter {
			return // it is being probed
		}
		if now.CompareAndSwap(before, t) {
			if t.failures >= openAfter {
				c.notify(t.err)
				c.Apart(func() { c.probe(now, t, c.probeKey(key)) })
			}
			return
		}
	}
}

// probe sends probes, the first one immediately, until the server replies, the breaker closes for
// another reason, or Close is called.
func (c *Conn) probe(now *atomic.Pointer[breakerState], t *breakerState, key string) {
	for now.Load() == t {
		if c.serves(key) {
			if now.CompareAndSwap(t, nil) {
				c.notify(nil)
			}
			return
		}
		if retry.Sleep(c.life, probeInterval*3/4+rand.N(probeInterval/4)) != nil {
			// jitter: processes do not probe in step
			return
		}
	}
}

// probeKey returns a key that does not exist, in the slot of key.
func (c *Conn) probeKey(key string) string { return c.prefix + "::probe:{" + tag(key) + "}" }

// serves reports whether the server of key accepts a write that changes nothing: a server that only
// serves reads may be a replica. The command needs no memory, which may be full. serves returns
// when the command has returned, or at Close. If the client ignores deadlines, that may be long
// after the timeout. So at most one probe is in progress, and probes do not use up the connections
// of the client.
func (c *Conn) serves(key string) bool {
	cmd := redis.NewIntCmd(c.life, "persist", key)
	cmd.SetErr(NotReturned(nil)) // replaced when Process returns
	err := c.Await(c.life, func(life context.Context) {
		ctx, cancel := context.WithTimeout(life, c.health.bound)
		defer cancel()
		c.Process(ctx, []redis.Cmder{cmd})
	})
	return err == nil && !Unable(cmd.Err())
}

// Refused records that the server of key has refused a write with err, as Failed does. It reports
// whether err is such a refusal. A write that was not acknowledged in time is not: it may have
// been a large one, which is no failure of Redis.
func (c *Conn) Refused(ctx context.Context, key string, err error) bool {
	refused := Unable(err) && (IsReply(err) || conclusive(err))
	if refused {
		c.Failed(ctx, key, err)
	}
	return refused
}
