package conn

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/noanswer"
)

const probeBound = 100 * time.Millisecond

// answers is a hook that replies to every command in place of a server.
type answers struct {
	mu     sync.Mutex
	answer func(cmd redis.Cmder) error
	probes []string // the keys of those that were seen
}

func (a *answers) set(f func(redis.Cmder) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = f
}

func (a *answers) probed() (keys []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys, a.probes = a.probes, nil
	return keys
}

func (*answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *answers) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		a.mu.Lock()
		if cmd.Name() == "persist" {
			a.probes = append(a.probes, keyOf(cmd))
		}
		answer := a.answer
		a.mu.Unlock() // it may take its time
		err := answer(cmd)
		cmd.SetErr(err)
		return err
	}
}

func (a *answers) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) (first error) {
		a.mu.Lock()
		answer := a.answer
		a.mu.Unlock()
		for _, cmd := range cmds {
			err := answer(cmd)
			cmd.SetErr(err)
			first = errors.Join(first, err)
		}
		return first
	}
}

func always(err error) func(redis.Cmder) error { return func(redis.Cmder) error { return err } }

var errBroken = errors.New("the connection has broken")

// reply is an error reply of a server.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// watched is a connection whose commands get these replies.
func watched(t *testing.T, rdb redis.UniversalClient) (*Conn, *answers) {
	t.Helper()
	c, err := New(rdb, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.Watch("prefix", probeBound)
	a := &answers{answer: always(nil)}
	rdb.AddHook(a)
	t.Cleanup(c.Close)
	return c, a
}

// get asks for keys, and returns the error of the last one.
func (c *Conn) get(ctx context.Context, keys ...string) error {
	bound, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	cmds := make([]redis.Cmder, len(keys))
	for i, key := range keys {
		cmds[i] = redis.NewStringCmd(bound, "get", key)
	}
	sent := c.Ask(ctx, bound, cmds)
	last := len(keys) - 1
	if err := sent.Err(last); err != nil {
		return err
	}
	return cmds[last].Err()
}

func TestBreakerOpensAndCloses(t *testing.T) {
	for name, broken := range map[string]error{
		"connection": errBroken, "time-out": context.DeadlineExceeded, "loading": reply("LOADING Redis is loading"),
		"cluster": reply("CLUSTERDOWN Hash slot not served"), "master": reply("MASTERDOWN Link with MASTER is down"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, a := watched(t, lazyClient(t))
				a.set(always(broken))
				for range openAfter - 1 {
					if err := c.get(t.Context(), "p:{k}"); err == nil || c.Down(0) != nil {
						t.Fatal(err, c.Down(0))
					}
				}
				a.set(always(nil))
				c.get(t.Context(), "p:{k}") // they were not in a row
				a.set(always(broken))
				for range openAfter {
					if c.Down(0) != nil {
						t.Fatal("too early")
					}
					c.get(t.Context(), "p:{k}", "p:{l}") // one trip
				}
				if err := c.Down(0); !errors.Is(err, ErrDown) || !errors.Is(err, broken) && !noanswer.Is(err) ||
					errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				n := a.probed()
				if len(n) < int(time.Minute/probeInterval) || len(n) > 2*int(time.Minute/probeInterval) ||
					n[0] != "prefix::probe:{k}" {
					t.Errorf("%d probes in a minute, of %v", len(n), n[:min(len(n), 1)])
				}
				a.set(always(nil))
				time.Sleep(probeInterval)
				if c.Down(0) != nil {
					t.Fatal("its return was not noticed")
				}
				a.probed()
				time.Sleep(time.Minute)
				if n := a.probed(); len(n) != 0 {
					t.Errorf("%d probes though all is well", len(n))
				}
			})
		})
	}
}

// What does not say that Redis is out of reach does not open the breaker.
func TestBreakerCountsOnlyRedis(t *testing.T) {
	for _, err := range []error{
		redis.Nil, reply("WRONGTYPE"), reply("OOM"), reply("NOSCRIPT"), reply("NOPERM"), reply("BUSYKEY"),
		reply("TRYAGAIN Multiple keys"), context.Canceled, ErrClosed,
	} {
		c, a := watched(t, lazyClient(t))
		a.set(always(err))
		for range 2 * openAfter {
			c.get(t.Context(), "k")
			c.get(t.Context(), "k", "l")
		}
		if c.Down(0) != nil {
			t.Errorf("%v: %v", err, c.Down(0))
		}
	}
}

// A caller who leaves, or whose deadline has passed, has not found Redis out of reach.
func TestBreakerCountsNoCallersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := watched(t, lazyClient(t))
		a.set(func(redis.Cmder) error { time.Sleep(probeBound / 2); return errBroken })
		for range 2 * openAfter {
			ctx, cancel := context.WithTimeout(t.Context(), probeBound/2) // which may end a command before its context
			c.get(ctx, "k")
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(probeBound/4, cancel)
			c.get(ctx, "k")
		}
		if c.Down(0) != nil {
			t.Error(c.Down(0))
		}
	})
}

// A server that has become a replica still replies to reads, possibly with deleted entries.
func TestBreakerOfADemotedMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := watched(t, lazyClient(t))
		a.set(func(cmd redis.Cmder) error {
			if cmd.Name() == "get" {
				return nil
			}
			return reply("READONLY You can't write against a read only replica.")
		})
		bound, cancel := context.WithTimeout(t.Context(), probeBound)
		defer cancel()
		c.Ask(t.Context(), bound, []redis.Cmder{redis.NewCmd(t.Context(), "evalsha", "sha", 1, "k")})
		if err := c.Down(0); !redis.HasErrorPrefix(err, "READONLY") {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if c.get(t.Context(), "k"); c.Down(0) == nil {
			t.Error("it is taken for back")
		}
		c.Acknowledged("k") // a delete
		if c.Down(0) != nil {
			t.Error("an acknowledged write counts for nothing")
		}
		time.Sleep(time.Second) // the probe ends
	})
}

// On a cluster a lost node concerns the ranges of its own keys, and is asked where the key lives
// that has failed.
func TestBreakerOfARange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := watched(t, lazyCluster(t))
		a.set(func(cmd redis.Cmder) error {
			if strings.Contains(keyOf(cmd), "{"+Tag(5)+"}") {
				return errBroken
			}
			return nil
		})
		for range openAfter {
			c.get(t.Context(), "p:{"+Tag(5)+"}")
			c.get(t.Context(), "p:{"+Tag(6)+"}")
		}
		for r := range Ranges {
			if (c.Down(r) != nil) != (r == 5) {
				t.Errorf("range %d: %v", r, c.Down(r))
			}
		}
		a.set(always(nil))
		time.Sleep(probeInterval)
		if n := a.probed(); c.Down(5) != nil || slot(n[0]) != slot(Tag(5)) {
			t.Error(c.Down(5), n)
		}
	})
}

func TestCloseEndsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := watched(t, lazyClient(t))
		a.set(always(errBroken))
		for range openAfter {
			c.get(t.Context(), "k")
		}
		time.Sleep(probeInterval / 10)
		began := time.Now()
		c.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// All is well: nothing is allocated for that.
func TestBreakerDoesNotAllocate(t *testing.T) {
	c, _ := watched(t, lazyClient(t))
	cmds := []redis.Cmder{redis.NewStringCmd(t.Context(), "get", "k")}
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		c.Note(ctx, cmds)
		if c.Down(0) != nil {
			t.Fatal("it is down")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// That many bytes take long is no trouble of Redis; that it says so itself is.
func TestBreakerCountsNothingLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, a := watched(t, lazyClient(t))
		ask := func() {
			bound, cancel := context.WithTimeout(t.Context(), probeBound)
			defer cancel()
			c.AskLong(t.Context(), bound, []redis.Cmder{redis.NewStringCmd(bound, "getrange", "p:{k}", 0, 1),
				redis.NewStringCmd(bound, "getrange", "p:{k}", 1, 2)})
		}
		for _, broken := range []error{errBroken, context.DeadlineExceeded} {
			a.set(always(broken))
			for range 3 * openAfter {
				if ask(); c.Down(0) != nil {
					t.Fatalf("%v is taken for trouble", broken)
				}
			}
		}
		a.set(always(reply("LOADING Redis is loading")))
		for range openAfter {
			ask()
		}
		if c.Down(0) == nil {
			t.Error("Redis is loading, and asked all the same")
		}
	})
}
