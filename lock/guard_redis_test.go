package lock_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

func eachRedis(t *testing.T, f func(t *testing.T, rdb redis.UniversalClient)) {
	t.Run("embedded", func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		f(t, rdb)
	})
	t.Run("redis", func(t *testing.T) { f(t, testenv.SharedRedis(t).Client(t)) })
	t.Run("cluster", func(t *testing.T) { f(t, testenv.SharedCluster(t).Client(t)) })
}

func wantValue(t testing.TB, rdb redis.UniversalClient, key, value string) {
	t.Helper()
	if got, err := rdb.Get(t.Context(), key).Result(); got != value || err != nil {
		t.Fatalf("GET: %q, %v; want %q", got, err, value)
	}
}

func TestSetFenced(t *testing.T) {
	eachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		// Each kind of slot, and a fence for each key.
		for _, key := range []string{"k", "{k}", "a{k}b", "a{b", "{{k}}", "shop:1", " \x00\xff"} {
			set := func(what, value string, token int64, err error) {
				t.Helper()
				locktest.Want(t, what, lock.SetFenced(t.Context(), rdb, key, value, token, time.Minute), err)
			}
			set("the first", "a", 99, nil)
			set("the same", "b", 99, nil)
			set("an older", "c", 98, lock.ErrStale)
			set("one that is shorter", "c", 9, lock.ErrStale)
			set("a newer", "d", 100, nil)
			set("the first, again", "c", 99, lock.ErrStale)
			wantValue(t, rdb, key, "d")
			locktest.Want(t, "delete", rdb.Del(t.Context(), key).Err(), nil)
			set("the first, after a delete", "c", 99, lock.ErrStale)
		}
	})
}

func TestGetFencedShowsTheToken(t *testing.T) {
	eachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx := t.Context()
		_, err := lock.GetFenced(ctx, rdb, "k", 3)
		locktest.Want(t, "read what is not there", err, redis.Nil)
		locktest.Want(t, "set by an older", lock.SetFenced(ctx, rdb, "k", "old", 2, time.Minute), lock.ErrStale)
		locktest.Want(t, "set", lock.SetFenced(ctx, rdb, "k", "a", 3, time.Minute), nil)
		value, err := lock.GetFenced(ctx, rdb, "k", 4)
		if value != "a" || err != nil {
			t.Fatalf("read: %q, %v", value, err)
		}
		locktest.Want(t, "set what was read before", lock.SetFenced(ctx, rdb, "k", "old", 3, time.Minute),
			lock.ErrStale)
		_, err = lock.GetFenced(ctx, rdb, "k", 3)
		locktest.Want(t, "read by an older", err, lock.ErrStale)
		locktest.Want(t, "set what was read", lock.SetFenced(ctx, rdb, "k", []byte("b"), 4, 0), nil)
		wantValue(t, rdb, "k", "b")
	})
}

func TestFenceOutlivesItsValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		ctx := t.Context()
		locktest.Want(t, "set", lock.SetFenced(ctx, rdb, "k", "a", 2, time.Minute), nil)
		time.Sleep(time.Minute + time.Millisecond)
		locktest.Want(t, "read what has expired", rdb.Get(ctx, "k").Err(), redis.Nil)
		time.Sleep(24*time.Hour - time.Second)
		locktest.Want(t, "a day after", lock.SetFenced(ctx, rdb, "k", "b", 1, time.Minute), lock.ErrStale)

		_, err := lock.GetFenced(ctx, rdb, "k", 3) // a key without a value
		locktest.Want(t, "read", err, redis.Nil)
		if life := rdb.PTTL(ctx, "fence{k}").Val(); life < 24*time.Hour || life > 25*time.Hour {
			t.Errorf("the fence of a missing value lives for %v", life)
		}
		locktest.Want(t, "set for ever", lock.SetFenced(ctx, rdb, "k", "c", 3, 0), nil)
		_, err = lock.GetFenced(ctx, rdb, "k", 4)
		locktest.Want(t, "read", err, nil)
		time.Sleep(1000 * time.Hour)
		locktest.Want(t, "much later", lock.SetFenced(ctx, rdb, "k", "b", 3, time.Minute), lock.ErrStale)
		wantValue(t, rdb, "k", "c")
	})
}

// Lua's numbers have 53 bits.
func TestFenceComparesLargeTokens(t *testing.T) {
	eachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, token := range []int64{1<<53 + 1, math.MaxInt64} {
			locktest.Want(t, "set", lock.SetFenced(t.Context(), rdb, "k", "a", token, time.Minute), nil)
			locktest.Want(t, "set by an older", lock.SetFenced(t.Context(), rdb, "k", "b", token-1, time.Minute),
				lock.ErrStale)
		}
	})
}

func TestSetFencedRefuses(t *testing.T) {
	_, rdb := testenv.Mini(t)
	ctx := t.Context()
	for _, key := range []string{"", "a}b", "{}a", "}{"} {
		if err := lock.SetFenced(ctx, rdb, key, "a", 1, 0); err == nil || key != "" &&
			strings.Contains(err.Error(), key) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	for _, ttl := range []time.Duration{-1, time.Microsecond} {
		if err := lock.SetFenced(ctx, rdb, "k", "a", 1, ttl); err == nil {
			t.Errorf("a TTL of %v: no error", ttl)
		}
	}
	if err := lock.SetFenced(ctx, nil, "k", "a", 1, 0); err == nil {
		t.Error("no client: no error")
	}
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	if err := lock.SetFenced(ctx, ring, "k", "a", 1, 0); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("a ring: %v", err)
	}
	rdb.Set(ctx, "fence{k}", "something else", 0)
	if err := lock.SetFenced(ctx, rdb, "k", "a", 1, 0); err == nil || errors.Is(err, lock.ErrStale) {
		t.Errorf("an invalid fence: %v", err)
	}
	locktest.Want(t, "read", rdb.Get(ctx, "k").Err(), redis.Nil)
}

// SetFenced returns when its context ends, with any client settings, even if a command hangs.
func TestSetFencedWhereRedisHangs(t *testing.T) {
	r := testenv.SharedRedis(t)
	o := r.Options()
	o.ReadTimeout = 2 * testenv.Hang // of the command that is abandoned
	rdb := redis.NewClient(o)
	defer rdb.Close()
	locktest.Want(t, "set", lock.SetFenced(t.Context(), rdb, "k", "a", 1, 0), nil)
	r.Pause()
	defer r.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- lock.SetFenced(ctx, rdb, "k", "b", 1, 0) }()
	locktest.Want(t, "set", testenv.Receive(t, "the end of its context", failed), context.DeadlineExceeded)
}

func TestSetFencedNeedsNoMoreThanDocumented(t *testing.T) {
	r := testenv.SharedRedis(t)
	admin := r.Client(t)
	locktest.Want(t, "a user", admin.Do(t.Context(), "ACL", "SETUSER", "fenced", "on", "nopass", "~fence*", "~shop:*",
		"-@all", "+eval", "+evalsha", "+get", "+set", "+pttl").Err(), nil)
	defer admin.Do(context.Background(), "ACL", "DELUSER", "fenced")
	o := r.Options()
	o.Username, o.Password = "fenced", "any"
	rdb := redis.NewClient(o)
	defer rdb.Close()
	for _, key := range []string{"shop:1", "shop:{1}"} {
		locktest.Want(t, "set", lock.SetFenced(t.Context(), rdb, key, "a", 2, time.Minute), nil)
		value, err := lock.GetFenced(t.Context(), rdb, key, 2)
		if value != "a" || err != nil {
			t.Errorf("read: %q, %v", value, err)
		}
		locktest.Want(t, "set by an older", lock.SetFenced(t.Context(), rdb, key, "b", 1, time.Minute), lock.ErrStale)
	}
}
