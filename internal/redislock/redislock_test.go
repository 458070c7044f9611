package redislock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

func TestNames(t *testing.T) {
	for _, name := range []string{"", "plain", "a}b%c", "%25", "%7D}", "{x}"} {
		got, ok := Name("lock:", Key("lock:", name))
		if !ok || got != name {
			t.Errorf("%q becomes %q, %v", name, got, ok)
		}
	}
	for _, key := range []string{"", "lock:", "lock:{", "lock:x}", "other:{x}", "lock:{a}b}", "lock:{a%b}"} {
		if name, ok := Name("lock:", key); ok {
			t.Errorf("%q is taken for the key of %q", key, name)
		}
	}
}

func TestParse(t *testing.T) {
	now := time.UnixMilli(1790000000000)
	l, ok := Parse("L1 abc 1790000000000001 1790000000500 1")
	if !ok || l.Holder != "abc" || l.Token != 1790000000000001 || !l.Waited || !l.Held(now) ||
		l.Held(now.Add(time.Second)) {
		t.Errorf("%+v, %v", l, ok)
	}
	if l, ok := Parse("L1 - 5 0 0"); !ok || l.Held(now) || l.Token != 5 {
		t.Errorf("%+v, %v", l, ok)
	}
	for _, bad := range []string{"", "L1", "L2 a 1 1 0", "L1 a 1 1 2", "L1  1 1 0", "L1 a -1 1 0", "L1 a +1 1 0",
		"L1 a 1 12345678901234567 0", "L1 a 1 1 0 0", "L1 a\n 1 1 0", "L1 a x 1 0"} {
		if l, ok := Parse(bad); ok {
			t.Errorf("%q is taken for %+v", bad, l)
		}
	}
}

// FuzzParse: what it takes for a lock it writes the same again.
func FuzzParse(f *testing.F) {
	f.Add("L1 abc 1790000000000001 1790000000500 1")
	f.Fuzz(func(t *testing.T, value string) {
		l, ok := Parse(value)
		if ok && (l.Token < 0 || l.Holder == "" || strings.ContainsAny(l.Holder, " \n") ||
			!strings.HasPrefix(value, "L1 "+l.Holder+" ")) {
			t.Errorf("%q is %+v", value, l)
		}
	})
}

// TestRetryAfterClose: what is to be undone is tried for one time-out more.
func TestRetryAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{})
		defer rdb.Close()
		c, err := conn.New(rdb, 0)
		if err != nil {
			t.Fatal(err)
		}
		w := NewWakes(nil, c)
		tries := 0
		w.Retry(time.Hour, time.Minute, func(context.Context) error { tries++; return errUnexpected })
		w.Close()
		began := time.Now()
		c.Close()
		if took := time.Since(began); took != time.Minute || tries < 10 {
			t.Errorf("%d tries in %v", tries, took)
		}
	})
}

// TestClockIgnoresLateReplies: a reply that has taken longer than the timeout is no reading of the
// clock, so the bound of a request is at most two timeouts ahead of the server's time.
func TestClockIgnoresLateReplies(t *testing.T) {
	const timeout = time.Second
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		read := func(takes time.Duration) func() (Reply, error) {
			return func() (Reply, error) {
				now := time.Now().UnixMicro()
				time.Sleep(takes)
				return Reply{Now: now + takes.Microseconds()}, nil
			}
		}
		if _, err := c.Bound(timeout, read(timeout+time.Microsecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a late reading: %v", err)
		}
		ahead := func(takes time.Duration) time.Duration {
			bound, err := c.Bound(timeout, read(takes))
			if err != nil {
				t.Fatal(err)
			}
			return time.Until(time.UnixMicro(bound))
		}
		if got := ahead(timeout); got != 2*timeout {
			t.Errorf("the bound is %v ahead", got)
		}
		sent := time.Now()
		time.Sleep(timeout + time.Microsecond)
		if c.Learn(timeout, sent, time.Now().Add(time.Hour).UnixMicro()) || ahead(0) != 2*timeout {
			t.Error("a late reply was learned")
		}
		if !c.Learn(timeout, time.Now(), time.Now().UnixMicro()) || ahead(0) != timeout {
			t.Error("a reply was not learned")
		}
	})
}
