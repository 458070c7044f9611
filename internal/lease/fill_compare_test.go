package lease

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// fills counts the commands that fill. It repeats each SET with IFEQ if repeat is true, as a client
// does that has lost the reply.
type fills struct {
	compares, scripts int
	repeat            bool
}

func isCompare(cmd redis.Cmder) bool { return slices.Contains(cmd.Args(), any("ifeq")) }

func (f *fills) count(cmds ...redis.Cmder) (compare bool) {
	for _, cmd := range cmds {
		switch {
		case isCompare(cmd):
			f.compares++
			compare = true
		case strings.HasPrefix(cmd.Name(), "eval"):
			f.scripts++
		}
	}
	return compare
}

func (*fills) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *fills) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.count(cmd) && f.repeat {
			_ = next(ctx, redis.NewCmd(ctx, cmd.Args()...))
		}
		return next(ctx, cmd)
	}
}

func (f *fills) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if f.count(cmds...) && f.repeat {
			var again []redis.Cmder
			for _, cmd := range cmds {
				again = append(again, redis.NewCmd(ctx, cmd.Args()...))
			}
			_ = next(ctx, again)
		}
		return next(ctx, cmds)
	}
}

// fillAll fills the leases of keys. b.delete has removed some of them before.
func fillAll(t *testing.T, b *backend, removed string, keys ...string) {
	t.Helper()
	var fs []*Filling
	for _, key := range keys {
		a := b.attempt(key)
		b.take(a, Mine)
		fs = append(fs, &Filling{Attempt: a.Attempt, Entry: Entry{Codec: 4, Payload: []byte("value of " + key)},
			Life: long})
	}
	if removed != "" {
		b.delete(removed)
	}
	b.store.Fill(t.Context(), fs)
	for i, f := range fs {
		if f.Err != nil || f.Stored != (keys[i] != removed) || f.Owns() {
			t.Errorf("%s: stored %v, %v, owns %v", keys[i], f.Stored, f.Err, f.Owns())
		}
		if keys[i] == removed {
			b.read(b.attempt(keys[i]), Absent)
		} else {
			b.payload(keys[i], "value of "+keys[i])
		}
	}
}

func TestFillsCompare(t *testing.T) {
	rdb := testenv.SharedValkey(t).Client(t)
	count := &fills{}
	rdb.AddHook(count)
	b := newBackend(t, rdb)
	fillAll(t, b, "", "first") // finds out whether the server can
	*count = fills{}
	fillAll(t, b, "", "a", "b", "c")
	if count.compares != 3 || count.scripts != 0 {
		t.Errorf("3 fills took %d comparisons and %d scripts", count.compares, count.scripts)
	}
	*count = fills{}
	fillAll(t, b, "e", "d", "e", "f")
	if count.compares != 3 || count.scripts > 2 { // a script that the server does not know is sent twice
		t.Errorf("3 fills, one of them late, took %d comparisons and %d scripts", count.compares, count.scripts)
	}
}

// A client repeats a command whose reply was lost. The repeated one finds the entry in place of the
// lease.
func TestRepeatedComparisonIsRecognised(t *testing.T) {
	rdb := testenv.SharedValkey(t).Client(t)
	b := newBackend(t, rdb)
	fillAll(t, b, "", "first")
	rdb.AddHook(&fills{repeat: true})
	fillAll(t, b, "", "a")
	fillAll(t, b, "c", "b", "c", "d")
}

// A server without IFEQ is asked once, with one entry.
func TestFillsCompareOnlyWhereTheServerCan(t *testing.T) {
	_, rdb := testenv.Mini(t)
	count := &fills{}
	rdb.AddHook(count)
	b := newBackend(t, rdb)
	fillAll(t, b, "b", "a", "b", "c")
	fillAll(t, b, "e", "d", "e", "f")
	if count.compares != 1 {
		t.Errorf("the server was asked %d times", count.compares)
	}
}
