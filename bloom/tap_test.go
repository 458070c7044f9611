package bloom

import (
	"context"
	"net"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// tap is called before and behind all that a client sends, and may refuse it.
type tap struct {
	before func(cmds []redis.Cmder) error
	after  func(cmds []redis.Cmder)
}

func (t *tap) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (t *tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return t.through([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (t *tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return t.through(cmds, func() error { return next(ctx, cmds) })
	}
}

func (t *tap) through(cmds []redis.Cmder, next func() error) error {
	if t.before != nil {
		if err := t.before(cmds); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
	}
	err := next()
	if t.after != nil {
		t.after(cmds)
	}
	return err
}

// pairs run a test as heavy does, with two clients each.
func pairs(t *testing.T, test func(t *testing.T, tapped, other redis.UniversalClient)) {
	t.Run("embedded", func(t *testing.T) {
		if tooHeavy(t) {
			return
		}
		m, client := testenv.Mini(t)
		o := *client.Options()
		tapped := redis.NewClient(&o)
		t.Cleanup(func() { tapped.Close() })
		_ = m
		test(t, tapped, client)
	})
	t.Run("redis", func(t *testing.T) {
		r := testenv.SharedRedis(t)
		test(t, r.Client(t), r.Client(t))
	})
	t.Run("cluster", func(t *testing.T) {
		c := testenv.SharedCluster(t)
		test(t, c.Client(t), c.Client(t))
	})
}

// mustHave fails if one of the keys is missed.
func mustHave(t testing.TB, f *Redis, keys []string, when string) {
	t.Helper()
	maybe, err := f.MightContainMany(t.Context(), keys)
	must(t, err)
	if at := slices.Index(maybe, false); at >= 0 {
		t.Fatalf("%s: key %d of %d is missed", when, at, len(keys))
	}
}

// mustBeWhole fails unless the filter is whole.
func mustBeWhole(t testing.TB, f *Redis) {
	t.Helper()
	d, err := f.fetchDescriptor(t.Context(), f.longTimeout())
	must(t, err)
	if d.Active == nil || d.Building != nil || len(d.Old) > 0 {
		t.Fatalf("%+v", d.descriptor)
	}
	if _, missing, err := f.count(t.Context(), d.Active); missing > 0 || err != nil {
		t.Fatalf("%d segments are lost, %v", missing, err)
	}
	absent := make([]string, 200)
	for i := range absent {
		absent[i] = "absent" + string(rune(1000+i))
	}
	maybe, err := f.MightContainMany(t.Context(), absent)
	must(t, err)
	positives := 0
	for _, m := range maybe {
		if m {
			positives++
		}
	}
	if positives > 20 {
		t.Fatalf("%d of 200 absent keys", positives)
	}
}
