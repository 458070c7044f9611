package conn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestAwaitLeavesWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(lazyClient(t), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var ended atomic.Bool
		work := func() {
			time.Sleep(time.Minute)
			ended.Store(true)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := c.Await(ctx, func(context.Context) { work() }); err != context.DeadlineExceeded ||
			time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		c.Close() // waits for what was left behind
		if !ended.Load() || time.Since(begin) != time.Minute {
			t.Errorf("after Close: %v, %v", ended.Load(), time.Since(begin))
		}
		if err := c.Await(t.Context(), func(context.Context) { work() }); err != ErrClosed || c.Apart(work) {
			t.Errorf("after Close: %v", err)
		}
		c.Close()
		if time.Since(begin) != time.Minute {
			t.Error("something was run after Close")
		}
	})
}

// Nothing but a deadline that the client keeps by itself ends what is done on the caller's
// goroutine.
func TestFinish(t *testing.T) {
	free := context.WithoutCancel(t.Context())
	within, done := WithTimeout(free, time.Minute)
	defer done()
	again, done := WithTimeout(within, time.Minute)
	defer done()
	limited, done := context.WithTimeout(within, time.Minute)
	defer done()
	cancelled, done := WithTimeout(t.Context(), time.Minute)
	defer done()
	if deadline, ok := within.Deadline(); !ok || time.Until(deadline) > time.Minute {
		t.Error(deadline, ok)
	}
	for _, bounded := range []bool{true, false} {
		rdb := redis.NewClient(&redis.Options{ContextTimeoutEnabled: bounded})
		defer rdb.Close()
		c, err := New(rdb, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for name, limited := range map[string]struct {
			ctx  context.Context
			here bool
		}{"without end": {free, true}, "with a time-out": {within, true}, "with two": {again, true},
			"that another has made": {limited, false}, "that may be cancelled": {t.Context(), false}, "and has a time-out": {cancelled, false}} {
			here, caller := "", goroutine()
			if err := c.Finish(limited.ctx, func(context.Context) { here = goroutine() }); err != nil {
				t.Error(err)
			}
			if (here == caller) != (limited.here && bounded) || here == "" {
				t.Errorf("a context %s, bounded %v: on the caller's goroutine %v", name, bounded, here == caller)
			}
		}
		begun, end, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go c.Finish(free, func(context.Context) { close(begun); <-end })
		<-begun
		go func() { c.Close(); close(closed) }()
		for c.Finish(free, func(context.Context) {}) != ErrClosed {
			runtime.Gosched()
		}
		select {
		case <-closed:
			t.Error("Close does not wait")
		case <-time.After(10 * time.Millisecond):
		}
		close(end)
		<-closed
	}
}

// goroutine is which one this is.
func goroutine() string {
	b := make([]byte, 64)
	name, _, _ := strings.Cut(string(b[:runtime.Stack(b, false)]), " [")
	return name
}

func TestAwaitReturnsWhenItIsDone(t *testing.T) {
	c, err := New(lazyClient(t), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for range 100 {
		if err := c.Await(t.Context(), func(context.Context) { n++ }); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Await(t.Context(), func(context.Context) { runtime.Goexit() }); err != nil || n != 100 {
		t.Errorf("%v, %d", err, n)
	}
	c.Close()
}

// A client that keeps a context's deadline is used on the goroutine that asks; any other is left at
// the deadline.
func TestSendEndsInTime(t *testing.T) {
	for _, bounded := range []bool{false, true} {
		t.Run(fmt.Sprint(bounded), func(t *testing.T) {
			silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
			rdb := redis.NewClient(&redis.Options{Addr: silent.Addr().String(), ContextTimeoutEnabled: bounded,
				MaxRetries: -1, ReadTimeout: time.Hour})
			defer rdb.Close()
			c, err := New(rdb, 50*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if c.Bounded() != bounded || c.Timeout() != 50*time.Millisecond {
				t.Errorf("%v, %v", c.Bounded(), c.Timeout())
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.Timeout())
			defer cancel()
			begin := time.Now()
			cmd := redis.NewStatusCmd(ctx, "ping")
			sent := make(chan error, 1)
			go func() { sent <- c.Send(ctx, []redis.Cmder{cmd}) }()
			err = testenv.Receive(t, "the end of a command", sent)
			took := time.Since(begin)
			if took > 250*time.Millisecond && testenv.Accepting || (err == nil) != bounded || bounded &&
				cmd.Err() == nil {
				t.Errorf("it took %v: %v", took, err)
			}
			silent.Close() // what hangs is reset, for Close waits for it
			c.Close()
		})
	}
}

func TestSendManyCommands(t *testing.T) {
	onEach := map[string]redis.UniversalClient{
		"redis":   testenv.SharedRedis(t).Client(t),
		"cluster": testenv.SharedCluster(t).Client(t),
	}
	for name, rdb := range onEach {
		c, err := New(rdb, testenv.Hang)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 2, MaxPipeline, MaxPipeline + 1, 2*MaxPipeline + 500} {
			cmds := make([]redis.Cmder, n)
			for i := range cmds {
				cmds[i] = redis.NewStringCmd(t.Context(), "get", fmt.Sprint("key:", i))
				if i%3 == 0 {
					cmds[i] = redis.NewStatusCmd(t.Context(), "set", fmt.Sprint("key:", i), i)
				}
			}
			if err := c.Send(t.Context(), cmds); err != nil {
				t.Fatal(err)
			}
			for i, cmd := range cmds {
				if want := map[bool]error{true: nil, false: redis.Nil}[i%3 == 0]; cmd.Err() != want {
					t.Fatalf("%s: %d of %d: %v", name, i, n, cmd.Err())
				}
			}
		}
		c.Close()
	}
}

// The client of a cluster asks a random node for its commands before it sends its first command,
// and a node that hangs delays that by up to 5 seconds, regardless of the command's deadline.
func TestClusterClientDoesNotSendCommand(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	asked := func() (n int) {
		for _, node := range cluster.Nodes {
			stats := node.Client(t).Info(t.Context(), "commandstats").Val()
			if _, count, found := strings.Cut(stats, "cmdstat_command:calls="); found {
				calls, _, _ := strings.Cut(count, ",")
				i, err := strconv.Atoi(calls)
				if err != nil {
					t.Fatal(err)
				}
				n += i
			}
		}
		return n
	}
	rdb := redis.NewClusterClient(cluster.Options())
	defer rdb.Close()
	c, err := New(rdb, testenv.Hang)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := asked()
	for _, cmd := range []redis.Cmder{
		redis.NewStringCmd(t.Context(), "getrange", "key", "0", "1"),
		redis.NewCmd(t.Context(), "eval", "return 1", 1, "key"),
		Once(redis.NewCmd(t.Context(), "set", "key", "value", "nx")),
		redis.NewIntCmd(t.Context(), "del", "key"),
	} {
		if err := c.Send(t.Context(), []redis.Cmder{cmd}); err != nil || cmd.Err() != nil {
			t.Errorf("%s: %v, %v", cmd.Name(), err, cmd.Err())
		}
	}
	if n := asked() - before; n != 0 {
		t.Errorf("the nodes were asked for their commands %d times", n)
	}
}

// Each command has an error, for any behaviour of a hook.
func TestHooksThatDoNotReturn(t *testing.T) {
	cause := errors.New("a hook's")
	for name, f := range map[string]func() error{
		"panic":  func() error { panic("a hook") },
		"goexit": func() error { runtime.Goexit(); return nil },
		"error":  func() error { return cause },
	} {
		rdb := testenv.SharedRedis(t).Client(t)
		rdb.AddHook(hook(f))
		c, err := New(rdb, testenv.Hang)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 2, MaxPipeline + 1} {
			cmds := make([]redis.Cmder, n)
			for i := range cmds {
				cmds[i] = redis.NewStatusCmd(t.Context(), "ping")
			}
			if err := c.Send(t.Context(), cmds); err != nil {
				t.Fatal(err)
			}
			for i, cmd := range cmds {
				if cmd.Err() == nil || (name == "error" && cmd.Err() != cause) || IsReply(cmd.Err()) {
					t.Fatalf("%s: %d of %d: %v", name, i, n, cmd.Err())
				}
			}
		}
		c.Close()
	}
}

type hook func() error

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		err := h()
		cmd.SetErr(err)
		return err
	}
}

func (h hook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return h() }
}
