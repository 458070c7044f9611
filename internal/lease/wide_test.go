package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// attempts are some at different keys, as Store's methods take them.
func (b *backend) attempts(keys ...string) []*Attempt {
	attempts := make([]*Attempt, len(keys))
	for i, key := range keys {
		a := NewAttempt(key, long)
		attempts[i] = &a
	}
	return attempts
}

func (b *backend) fillings(attempts []*Attempt) []*Filling {
	fs := make([]*Filling, len(attempts))
	for i, a := range attempts {
		fs[i] = &Filling{Attempt: a, Entry: Entry{Codec: 4, Payload: []byte("v of " + a.key)}, Life: long}
	}
	return fs
}

// Many keys share few commands, and each gets its own result. They take more than one command, some
// keys are leased, and some are deleted in between.
func TestManyKeysAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		keys := make([]string, 2*maxWide+7)
		for i := range keys {
			keys[i] = fmt.Sprint("key ", i)
		}
		b.put(keys[3], Entry{Codec: 4, Payload: []byte("other")}, long)
		busy := b.attempt(keys[4])
		b.take(busy, Mine)
		attempts := b.attempts(keys...)
		b.store.Take(b.ctx, attempts)
		for i, a := range attempts {
			want := Mine
			switch i {
			case 3:
				want = Stored
			case 4:
				want = Busy
			}
			wantKind(t, a.key, a.State, a.Err, want)
		}
		attempts = append(append(attempts[:3:3], attempts[5:]...), b.attempts("never taken")...)
		b.delete(keys[0], keys[150])
		if held, err := b.store.Renew(b.ctx, attempts[:len(attempts)-1]); len(held) != len(attempts)-3 || err != nil {
			t.Errorf("%d of %d are held, %v", len(held), len(attempts)-1, err)
		}
		fs := b.fillings(attempts)
		for range 2 { // the second time they recognise themselves
			b.store.Fill(b.ctx, fs)
			for _, f := range fs {
				if want := f.key != keys[0] && f.key != keys[150] && f.key != "never taken"; f.Stored != want ||
					f.Err != nil {
					t.Errorf("%s: stored %v, %v", f.key, f.Stored, f.Err)
				}
			}
		}
		n := 0
		b.store.Read(b.ctx, new(Sizes), keys, func(i int, held *State, err error) {
			switch {
			case err != nil:
				t.Error(err)
			case i == 0 || i == 150:
				wantKind(t, keys[i], *held, err, Absent)
			case i == 4:
				wantKind(t, keys[i], *held, err, Busy)
			case held.Kind != Stored, i != 3 && string(held.Entry.Payload) != "v of "+keys[i]:
				t.Errorf("%s: kind %d, %q", keys[i], held.Kind, held.Entry.Payload)
			default:
				n++
			}
		})
		if n != len(keys)-3 {
			t.Errorf("%d are stored", n)
		}
		refresh := b.attempts(keys[5:60]...)
		b.store.Claim(b.ctx, refresh)
		fs = b.fillings(refresh)
		b.store.Fill(b.ctx, fs[:30])
		b.store.Release(b.ctx, refresh[30:])
		for i, f := range fs {
			if f.Stored != (i < 30) || f.Err != nil {
				t.Errorf("%s: refreshed %v, %v", f.key, f.Stored, f.Err)
			}
			b.take(b.attempt(f.key), Stored)
		}
	})
}

// A key that cannot be asked for, for it is no string, does not stand in the way of the others.
func TestOneOfManyKeysFails(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.check(b.rdb.LPush(b.ctx, "{list}", "x").Err())
		for _, holds := range []bool{false, true} { // by SET, and by the script
			b.delete("{a}", "{z}")
			b.store.holds = holds
			attempts := b.attempts("{a}", "{list}", "{z}")
			b.store.Take(b.ctx, attempts)
			wantKind(t, "before", attempts[0].State, attempts[0].Err, Mine)
			wantKind(t, "behind", attempts[2].State, attempts[2].Err, Mine)
			if attempts[1].Err == nil || !strings.Contains(attempts[1].Err.Error(), "WRONGTYPE") {
				t.Errorf("the list: kind %d, %v", attempts[1].State.Kind, attempts[1].Err)
			}
			fs := b.fillings([]*Attempt{attempts[0], attempts[2]})
			b.store.Fill(b.ctx, fs)
			if !fs[0].Stored || !fs[1].Stored {
				t.Errorf("stored %v, %v", fs[0].Stored, fs[1].Stored)
			}
		}
	})
}

// oldServer refuses SET with NX and GET, as servers before Redis 7.0 do.
type oldServer struct{ refused int }

func (*oldServer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (o *oldServer) refuse(cmd redis.Cmder) bool {
	args := fmt.Sprint(cmd.Args()...)
	if cmd.Name() != "set" || !strings.HasSuffix(args, "nxget") {
		return false
	}
	o.refused++
	cmd.SetErr(replyError("ERR syntax error"))
	return true
}

type replyError string

func (r replyError) Error() string { return string(r) }
func (replyError) RedisError()     {}

func (o *oldServer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if o.refuse(cmd) {
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (o *oldServer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		rest := make([]redis.Cmder, 0, len(cmds))
		for _, cmd := range cmds {
			if !o.refuse(cmd) {
				rest = append(rest, cmd)
			}
		}
		if len(rest) < len(cmds) && len(rest) == 0 {
			return cmds[0].Err()
		}
		return next(ctx, rest)
	}
}

// No server is asked by a command that old ones do not know.
func TestTakeOnAnOldServer(t *testing.T) {
	for _, keys := range [][]string{{"a"}, {"a", "b", "c"}} {
		rdb := testenv.SharedRedis(t).Client(t)
		old := &oldServer{}
		rdb.AddHook(old)
		b := newBackend(t, rdb)
		for range 2 {
			attempts := b.attempts(keys...)
			b.store.Take(b.ctx, attempts)
			for _, a := range attempts {
				wantKind(t, a.key, a.State, a.Err, Mine)
			}
			b.store.Release(b.ctx, attempts)
		}
		if old.refused > 0 {
			t.Errorf("%d commands were refused", old.refused)
		}
	}
}

// The reply to a script for many keys is lost: what it has done is found by the second try.
func TestLostReplyForManyKeys(t *testing.T) {
	n := newNetwork(t, 30*time.Second)
	n.store.holds = true
	n.disturb(testenv.LoseReply)
	attempts := n.attempts("a", "b", "c")
	n.store.Take(n.ctx, attempts)
	for _, a := range attempts {
		wantKind(t, a.key, a.State, a.Err, Mine)
		if len(a.sent) != 1 {
			t.Errorf("%s was sent %d times before", a.key, len(a.sent))
		}
	}
	if errors.Is(attempts[0].Err, context.DeadlineExceeded) {
		t.Error(attempts[0].Err)
	}
	fs := n.fillings(attempts)
	n.store.Fill(n.ctx, fs)
	for _, f := range fs {
		if !f.Stored {
			t.Errorf("%s is not stored: %v", f.key, f.Err)
		}
	}
}
