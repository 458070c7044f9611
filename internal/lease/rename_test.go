package lease

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/keys"
)

// scriptBytes records the greatest number of bytes of values that one script got. While deny is
// not empty, Redis refuses the script that renames with this error.
type scriptBytes struct {
	most atomic.Int64
	deny atomic.Bool
}

func (*scriptBytes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scriptBytes) see(cmd redis.Cmder) {
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return
	}
	s.most.Store(max(s.most.Load(), int64(size([]redis.Cmder{cmd}))))
	args := cmd.Args()
	exchange := args[1] == exchangeScript.Source && args[2] == 3
	if s.deny.Load() && (args[1] == renameScript.Hash || args[1] == renameScript.Source || exchange) {
		cmd.Args()[0], cmd.Args()[1] = "eval", "return redis.error_reply('NOPERM no rename')"
	}
}

func (s *scriptBytes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.see(cmd)
		return next(ctx, cmd)
	}
}

func (s *scriptBytes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.see(cmd)
		}
		return next(ctx, cmds)
	}
}

// longPayload is the payload of entry i. Every second one is short.
func longPayload(i int) []byte {
	n := 300
	if i%2 == 0 {
		n = 3 * maxScriptBytes
	}
	return bytes.Repeat([]byte{byte(i)}, n)
}

// fillLong fills keys with long and short entries. Entry 4 replaces a claim. Keys 6 and 7 were
// deleted during the load.
func (b *backend) fillLong(name string, n int) (fs []*Filling) {
	b.t.Helper()
	for i := range n {
		a := b.attempt(fmt.Sprintf("{%s %d}", name, i))
		if i == 4 {
			b.put(a.key, Entry{Codec: 4, Payload: []byte("old")}, long)
			b.claim(a, Mine)
		} else {
			b.take(a, Mine)
		}
		fs = append(fs, &Filling{Attempt: a.Attempt, Entry: Entry{Codec: 4, Payload: longPayload(i)}, Life: long})
	}
	b.delete(fs[6].key, fs[7].key)
	b.store.Fill(b.ctx, fs)
	return fs
}

// checkLong checks the result of fillLong.
func (b *backend) checkLong(fs []*Filling) {
	b.t.Helper()
	for i, f := range fs {
		if f.Err != nil || f.Stored != (i != 6 && i != 7) || f.Owns() {
			b.t.Errorf("entry %d: stored %v, %v, owns %v", i, f.Stored, f.Err, f.Owns())
		}
		if i == 6 || i == 7 {
			b.read(b.attempt(f.key), Absent)
			continue
		}
		if got := b.read(b.attempt(f.key), Stored).Entry.Payload; !bytes.Equal(got, longPayload(i)) {
			b.t.Errorf("entry %d: %d bytes", i, len(got))
		}
		b.life(f.key, long)
	}
	for _, f := range fs {
		if name := keys.Temporary(f.key, f.Entry.Stamp.String()); b.rdb.Exists(b.ctx, name).Val() != 0 {
			b.t.Errorf("%s is left behind", name)
		}
	}
}

// TestScriptsGetFewBytes stores long and short entries. No script gets the bytes of a long one, or
// of many short ones, because Redis serves no other client while it runs.
func TestScriptsGetFewBytes(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		hook := &scriptBytes{}
		b.rdb.AddHook(hook)
		b.checkLong(b.fillLong("new", 2*maxWide))
		if n := hook.most.Load(); n > maxScriptBytes+maxWide*leaseSize {
			t.Errorf("a script got %d bytes", n)
		}
	})
}

// TestLongExchangeGivesScriptsFewBytes writes through long values, also where the user may not
// rename keys.
func TestLongExchangeGivesScriptsFewBytes(t *testing.T) {
	holding(t, func(t *testing.T, b *backend) {
		b.store.lag = 0
		hook := &scriptBytes{}
		b.rdb.AddHook(hook)
		payload := longPayload(0)
		exchange := func(key string, want bool) {
			t.Helper()
			stored, err := b.store.Exchange(b.ctx, key, mine, Entry{Codec: 4, Payload: payload}, long)
			if err != nil || stored != want {
				t.Errorf("%s: stored %v, %v", key, stored, err)
			}
		}
		for _, denied := range []bool{false, true} {
			hook.most.Store(0)
			hook.deny.Store(denied)
			key := fmt.Sprintf("{long %v}", denied)
			b.mark(key, mine, long)
			b.enter(key, mine, long)
			exchange(key, true)
			b.payload(key, string(payload))
			b.life(key, long)
			exchange(key, false) // the hold has ended
			b.payload(key, string(payload))
			if n := hook.most.Load(); n > maxScriptBytes && !denied {
				t.Errorf("a script got %d bytes", n)
			}
		}
	})
}

// TestLongFillWithoutRename stores long entries where the user may not rename keys.
func TestLongFillWithoutRename(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		hook := &scriptBytes{}
		b.rdb.AddHook(hook)
		b.store.compares.Store(no)
		hook.deny.Store(true)
		for i, f := range b.fillLong("denied", 8) {
			if want := i != 6 && i != 7; f.Stored != want || f.Err != nil {
				t.Errorf("entry %d: stored %v, %v", i, f.Stored, f.Err)
			}
		}
	})
}
