//go:build accept

package lease

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestPingDuringLongFills measures the longest PING while 100 long entries are stored, and while
// the same bytes are stored by SET in a pipeline.
func TestPingDuringLongFills(t *testing.T) {
	server := testenv.StartRedis(t)
	for _, size := range []int{256 << 10, 1 << 20, 8 << 20} {
		b := newBackend(t, server.Client(t))
		const n = 100
		payload := bytes.Repeat([]byte("v"), size)
		sets, fills := time.Duration(1<<62), time.Duration(1<<62)
		for range 3 { // the best of three: other processes use the machine too
			sets = min(sets, longestPing(t, server, func() {
				pipe := b.rdb.Pipeline()
				for i := range n {
					pipe.Set(b.ctx, fmt.Sprint("set ", i), payload, time.Minute)
				}
				if _, err := pipe.Exec(b.ctx); err != nil {
					t.Fatal(err)
				}
			}))
			b.check(b.rdb.FlushAll(b.ctx).Err())
			as := make([]*Attempt, n)
			for i := range as {
				a := NewAttempt(fmt.Sprint("key ", i), long)
				as[i] = &a
			}
			b.store.Take(b.ctx, as)
			fs := b.fillings(as)
			for _, f := range fs {
				f.Entry.Payload = payload
			}
			fills = min(fills, longestPing(t, server, func() { b.store.Fill(b.ctx, fs) }))
			for _, f := range fs {
				if !f.Stored {
					t.Errorf("%s is not stored: %v", f.key, f.Err)
				}
			}
			b.check(b.rdb.FlushAll(b.ctx).Err())
		}
		t.Logf("100 entries of %d KB: longest PING %v beside SETs, %v beside fills", size>>10, sets, fills)
		if fills > 3*sets {
			t.Errorf("%d KB: more than three times as long", size>>10)
		}
	}
}

// longestPing returns the time of the longest PING to a server while f runs.
func longestPing(t *testing.T, server *testenv.Redis, f func()) (longest time.Duration) {
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	for {
		began := time.Now()
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
		}
		longest = max(longest, time.Since(began))
		select {
		case <-done:
			return longest
		default:
		}
	}
}
