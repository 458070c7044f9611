package conn

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis before version 7 wraps what a command of a script is refused with.
func wrapped(refusal string) string {
	return "ERR Error running script (call to f_88c923858e73954cede057e8a25f614a3552b177): @user_script:1: " +
		"@user_script: 1: -" + refusal
}

// readsOnly are refusals by servers that still reply to reads.
var readsOnly = []string{
	"READONLY You can't write against a read only replica.",
	"NOREPLICAS Not enough good replicas to write.",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"MISCONF Errors writing to the AOF file: No space left on device",
}

// outOfService are refusals by servers that serve nothing.
var outOfService = []string{
	"LOADING Redis is loading the dataset in memory",
	"CLUSTERDOWN The cluster is down",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"NOAUTH Authentication required.",
	"WRONGPASS invalid username-password pair or user is disabled.",
	"max number of clients reached",
	"max number of clients + cluster connections reached",
}

// oneKey are replies that concern a key, a command or a slot, or of a server that deletes still.
var oneKey = []string{
	"WRONGTYPE Operation against a key holding the wrong kind of value",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"NOSCRIPT No matching script. Please use EVAL.",
	"NOPERM No permissions to access a key",
	"BUSYKEY Target key name already exists.",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1",
	"CROSSSLOT Keys in request don't hash to the same slot",
	"ERR the key READONLY holds something else",
	"ERR unknown command 'x', with args beginning with: 'a: -READONLY b'",
	"READONLYX", "", "ERR",
}

func TestUnable(t *testing.T) {
	for _, c := range []struct {
		texts           []string
		unable, certain bool
	}{{readsOnly, true, true}, {outOfService, true, false}, {oneKey, false, false}} {
		for _, text := range c.texts {
			for _, said := range []string{text, "ERR " + text, wrapped(text)} { // a proxy may put ERR in front
				for _, err := range []error{reply(said), fmt.Errorf("failed to authenticate: %w", reply(said))} {
					if Unable(err) != c.unable || conclusive(err) != c.certain {
						t.Errorf("%q: unable %v, conclusive %v", said, Unable(err), conclusive(err))
					}
				}
			}
		}
	}
	for err, unable := range map[error]bool{
		nil: false, redis.Nil: false, ErrClosed: false, errPlainOnCluster: false, errBroken: true,
		&replicaError{}: false, &replicaError{before: true}: true,
	} {
		if Unable(err) != unable {
			t.Errorf("%v: unable %v", err, !unable)
		}
	}
}

// One refused write is enough: reads between the writes succeed.
func TestRefusedIsEnough(t *testing.T) {
	var errs []error
	for _, text := range readsOnly {
		errs = append(errs, reply(text), reply(wrapped(text)))
	}
	for _, err := range append(errs, &replicaError{before: true}) {
		synctest.Test(t, func(t *testing.T) {
			c, a := watched(t, lazyClient(t))
			a.set(func(cmd redis.Cmder) error {
				if cmd.Name() == "persist" {
					return err
				}
				return nil
			})
			if !c.Refused(t.Context(), "k", err) || !errors.Is(c.Down(0), ErrDown) || c.Out() != 1 {
				t.Errorf("%v: %v, %d", err, c.Down(0), c.Out())
			}
			time.Sleep(time.Second)
			if c.Down(0) == nil {
				t.Errorf("%v: it is taken for back", err)
			}
			a.set(always(nil))
			time.Sleep(probeInterval)
			if c.Down(0) != nil {
				t.Errorf("%v: its return is not noticed", err)
			}
		})
	}
	c, _ := watched(t, lazyClient(t))
	for range 2 * openAfter {
		for _, err := range []error{nil, errBroken, redis.Nil, reply("WRONGTYPE"), reply("OOM"), &replicaError{},
			errPlainOnCluster} {
			if c.Refused(t.Context(), "k", err) || c.Down(0) != nil {
				t.Fatalf("%v is taken for a refusal of all writes: %v", err, c.Down(0))
			}
		}
	}
}

// A server says in one of several ways of what kind it is.
func TestKindOf(t *testing.T) {
	for name, c := range map[string]struct {
		hello any
		want  kind
		err   error
	}{
		"map":             {hello: map[any]any{"server": "redis", "mode": "cluster", "role": "replica"}, want: kind{"cluster", "replica"}},
		"list":            {hello: []any{"server", "valkey", "mode", "standalone", "role", "master"}, want: kind{"standalone", "master"}},
		"nothing":         {hello: reply("ERR unknown command 'HELLO'")},
		"database":        {hello: reply("ERR SELECT is not allowed in cluster mode"), want: kind{mode: "cluster"}},
		"Valkey database": {hello: reply("ERR DB index is out of range"), err: ErrWrongClient},
		"no user":         {hello: reply("NOAUTH Authentication required."), err: reply("NOAUTH Authentication required.")},
		"nobody":          {hello: errBroken, err: errBroken},
	} {
		rdb := lazyClient(t)
		rdb.AddHook(&answers{answer: func(cmd redis.Cmder) error {
			if err, ok := c.hello.(error); ok {
				return err
			}
			cmd.(interface{ SetVal(any) }).SetVal(c.hello)
			return nil
		}})
		if got, err := kindOf(t.Context(), rdb); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
