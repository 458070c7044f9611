package clients_test

import (
	"context"
	"encoding/binary"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const prefix = "cacheaside"

// lateReply has the reply to a client's first poll come late, and later polls not be sent.
type lateReply struct {
	polls    atomic.Int64
	executed chan struct{} // closed when Redis has executed the first
	release  chan struct{} // and its reply is to come, when this is closed
	second   chan struct{} // closed when that has come, and the next is about to be sent
	end      chan struct{} // which it is when this is closed
}

func (l *lateReply) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lateReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A poll names the hash of the numbers, and one loader with a mark of its groups.
func (l *lateReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if len(args) != 6 || cmd.Name() != "evalsha" || !strings.Contains(args[3].(string), "::announced:") {
			return next(ctx, cmd)
		}
		switch l.polls.Add(1) {
		case 1:
			err := next(ctx, cmd)
			close(l.executed)
			<-l.release
			return err
		case 2:
			close(l.second)
		}
		<-l.end
		return next(ctx, cmd)
	}
}

// The reply to a poll that was sent before an InvalidateAll of the same process, and comes after
// it, has the generation before.
func TestInvalidateAllDuringTheFirstPoll(t *testing.T) {
	server := testenv.SharedRedis(t)
	d := &table{}
	open(t, server.Client(t), d, cacheaside.Options{}).stale(t, d) // now Redis has the rows
	rdb := server.Client(t)
	late := &lateReply{executed: make(chan struct{}), release: make(chan struct{}), second: make(chan struct{}),
		end: make(chan struct{})}
	rdb.AddHook(late)
	// Without a memory tier it does not receive its own announcement, which would correct it in the
	// end.
	p := open(t, rdb, d, cacheaside.Options{MemoryBytes: -1, MaxStaleness: time.Minute, RedisTimeout: testenv.Hang,
		ReadTimeout: testenv.Hang})
	got := make(chan error, 1) // of the first read
	go func() {
		_, err := p.rows.Get(context.Background(), 0)
		got <- err
	}()
	testenv.Receive(t, "the poll", late.executed)
	d.version.Add(1)
	if err := p.rows.InvalidateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(late.release)
	read := make(chan struct{}) // by either of these the reply to the first poll is known
	go func() {
		defer close(read)
		select {
		case <-late.second:
		case err := <-got:
			got <- err
		}
	}()
	testenv.Receive(t, "the reply", read)
	// A process that is not sure of the generation polls before it reads. If the reads wait for
	// that, the poll is let through; not at once, since it would repair the result of the first
	// reply.
	end := sync.OnceFunc(func() { close(late.end) })
	defer time.AfterFunc(3*time.Second, end).Stop()
	if n := p.stale(t, d, cacheaside.Fresh); n > 0 {
		t.Errorf("%d of %d reads are stale", n, rows)
	}
	end()
	if err := testenv.Receive(t, "the first read", got); err != nil {
		t.Error(err)
	}
}

// The known generation was greater than the one that Redis counts now.
func TestInvalidateAllAfterGreaterNumbers(t *testing.T) {
	for name, do := range map[string]struct {
		before, after func(t *testing.T, rdb *redis.Client, p *process)
	}{
		"forged message": {nil, func(t *testing.T, rdb *redis.Client, p *process) {
			testenv.Eventually(t, "a subscription", func() bool { s := p.Stats().Bus; return s.Trusted == s.Ranges })
			heard := p.Stats().Bus.Received
			m := binary.BigEndian.AppendUint64([]byte{0xC1, 0}, 7)
			m = append(m, "1 "+strconv.FormatUint(1<<53-1, 10)+" lrow"...)
			if err := rdb.Publish(t.Context(), invalidation.Topic(prefix, 0), m).Err(); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "the message", func() bool { return p.Stats().Bus.Received > heard })
		}},
		"lost hash": {func(t *testing.T, rdb *redis.Client, _ *process) {
			ahead := time.Now().Add(time.Hour).UnixMicro()
			if err := rdb.HSet(t.Context(), invalidation.Numbers(prefix, 0), "", ahead, "row",
				ahead).Err(); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, rdb *redis.Client, p *process) {
			p.stale(t, &table{})
			if err := rdb.Del(t.Context(), invalidation.Numbers(prefix, 0)).Err(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.SharedRedis(t)
			rdb, d := server.Client(t), &table{}
			if do.before != nil {
				do.before(t, rdb, nil)
			}
			p := open(t, server.Client(t), d, cacheaside.Options{Prefix: prefix, MaxStaleness: time.Minute})
			p.stale(t, d)
			do.after(t, rdb, p)
			p.stale(t, d)
			for range 3 {
				d.version.Add(1)
				if err := p.rows.InvalidateAll(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := p.stale(t, d); n > 0 {
					t.Errorf("%d of %d reads are stale", n, rows)
				}
				if n := p.stale(t, d, cacheaside.Fresh); n > 0 {
					t.Errorf("%d of %d fresh reads are stale", n, rows)
				}
			}
		})
	}
}

// A name that a program on the same Redis has for something else is as if the hash was lost.
func TestAnnouncedKeyOfAnotherType(t *testing.T) {
	server := testenv.SharedRedis(t)
	rdb, d := server.Client(t), &table{}
	p := open(t, server.Client(t), d, cacheaside.Options{Prefix: prefix, MaxStaleness: time.Second})
	p.stale(t, d)
	if err := rdb.Set(t.Context(), invalidation.Numbers(prefix, 0), "a string", 0).Err(); err != nil {
		t.Fatal(err)
	}
	d.version.Add(1)
	if err := p.rows.Invalidate(t.Context(), 1); err != nil {
		t.Error(err)
	}
	if v, err := p.rows.Get(t.Context(), 1, cacheaside.Fresh); v != 1 || err != nil {
		t.Error(v, err)
	}
}
