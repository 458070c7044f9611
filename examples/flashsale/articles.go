package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Locks from well-known articles, each an improvement on the one before. Each looks correct, and
// fails if something happens at the wrong moment. None has a fencing token.

// lockFunc waits for the lock until ctx ends, and returns the function that releases it.
type lockFunc func(ctx context.Context) (release func(), err error)

const key = "sale"

var ttl = 500 * time.Millisecond // TTL of the locks that expire; a variable for tests

// poll calls try until it succeeds.
func poll(ctx context.Context, try func() bool) error {
	for !try() {
		select {
		case <-time.After(3*time.Millisecond + randomly(4*time.Millisecond)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func noLock(*process) lockFunc {
	return func(context.Context) (func(), error) { return func() {}, nil }
}

// mutexLock excludes only goroutines of the same process.
func mutexLock(*process) lockFunc {
	var mu sync.Mutex
	return func(context.Context) (func(), error) {
		mu.Lock()
		return mu.Unlock, nil
	}
}

// V1: if the holder dies between the two commands, the key never expires.
func setnxExpire(p *process) lockFunc {
	return func(ctx context.Context) (func(), error) {
		err := poll(ctx, func() bool { return p.rdb.SetNX(ctx, key, "1", 0).Val() })
		if err != nil {
			return nil, err
		}
		p.faults.at(ctx, hasSet)
		p.rdb.PExpire(ctx, key, ttl)
		return func() { p.rdb.Del(ctx, key) }, nil
	}
}

// V2: the value contains the expiry time of the lock, but by the clock of the process that wrote
// it. Two processes may race with GETSET, and the loser's GETSET also moves the winner's expiry
// time. If the winner has released the lock by then, no process holds it until that time, so the
// sale sometimes stalls.
func setnxGetset(p *process) lockFunc {
	const life = 30 * time.Second
	return func(ctx context.Context) (func(), error) {
		var until int64
		err := poll(ctx, func() bool {
			now := p.faults.now()
			until = now.Add(life).UnixMilli()
			if p.rdb.SetNX(ctx, key, until, 0).Val() {
				return true
			}
			old, err := p.rdb.Get(ctx, key).Int64()
			if err != nil || old > now.UnixMilli() {
				return false
			}
			before, err := p.rdb.GetSet(ctx, key, until).Int64() //nolint:staticcheck // deprecated, but the articles use it
			return err == nil && before == old
		})
		return func() {
			if p.faults.now().UnixMilli() < until {
				p.rdb.Del(ctx, key)
			}
		}, err
	}
}

// This lock stores its owner as JSON, so that the owner can acquire it again. It treats a value
// that it cannot read as a free lock.
func jsonMeta(p *process) lockFunc {
	type meta struct {
		Owner string
		Count int
	}
	return func(ctx context.Context) (func(), error) {
		mine := meta{Owner: rand.Text(), Count: 1}
		text, err := json.Marshal(mine)
		if err != nil {
			return nil, err
		}
		err = poll(ctx, func() bool {
			if p.rdb.SetNX(ctx, key, text, 30*time.Second).Val() {
				return true
			}
			var found meta
			held, err := p.rdb.Get(ctx, key).Result()
			if err == redis.Nil { //nolint:errorlint // go-redis does not wrap it
				return false // it was released: try again
			}
			if err := json.Unmarshal([]byte(held), &found); err != nil { // also if the read failed
				p.rdb.Set(ctx, key, text, 30*time.Second)
				return true
			}
			return found.Owner == mine.Owner
		})
		return func() { p.rdb.Eval(ctx, compareAndDelete, []string{key}, text) }, err
	}
}

// This lock is a row with a unique key. It does not expire.
func uniqueRow(p *process) lockFunc {
	return func(ctx context.Context) (func(), error) {
		err := poll(ctx, func() bool {
			_, err := p.shop.ExecContext(ctx, "INSERT INTO locks VALUES (?)", key)
			return err == nil
		})
		return func() { _, _ = p.shop.ExecContext(ctx, "DELETE FROM locks WHERE name = ?", key) }, err
	}
}

// V3.1: a slow holder deletes the lock, which may belong to another process by then.
func setDel(p *process) lockFunc {
	return func(ctx context.Context) (func(), error) {
		err := poll(ctx, func() bool { return p.rdb.SetNX(ctx, key, "1", ttl).Val() })
		return func() { p.rdb.Del(ctx, key) }, err
	}
}

// V3.2: the holder checks the owner first, but the lock can change hands between the check and
// the deletion.
func setCompareDel(p *process) lockFunc {
	return func(ctx context.Context) (func(), error) {
		id := rand.Text()
		err := poll(ctx, func() bool { return p.rdb.SetNX(ctx, key, id, ttl).Val() })
		return func() {
			if p.rdb.Get(ctx, key).Val() == id {
				p.faults.at(ctx, hasCompared)
				p.rdb.Del(ctx, key)
			}
		}, err
	}
}

const compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// V4: the check and the deletion are atomic. But if the work takes longer than the TTL, two
// processes hold the lock.
func setLua(p *process) lockFunc {
	return func(ctx context.Context) (func(), error) {
		id := rand.Text()
		err := poll(ctx, func() bool { return p.rdb.SetNX(ctx, key, id, ttl).Val() })
		return func() { p.rdb.Eval(ctx, compareAndDelete, []string{key}, id) }, err
	}
}

const (
	enterHash = `if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
	redis.call('HINCRBY', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end return 0`
	leaveHash = `if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
	if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) <= 0 then redis.call('DEL', KEYS[1]) end return 1`
	renewHash = `if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end return 0`
)

// V5: a watchdog extends the lock. If it fails, the holder does not notice.
func hashWatchdog(p *process) lockFunc {
	return func(ctx context.Context) (func(), error) {
		id, ms := rand.Text(), strconv.FormatInt(ttl.Milliseconds(), 10)
		err := poll(ctx, func() bool {
			n, err := p.rdb.Eval(ctx, enterHash, []string{key}, id, ms).Int()
			return err == nil && n == 1
		})
		if err != nil {
			return nil, err
		}
		stop := make(chan struct{})
		var watchdog sync.WaitGroup
		watchdog.Go(func() {
			for {
				select {
				case <-time.After(ttl / 3):
					p.rdb.Eval(ctx, renewHash, []string{key}, id, ms)
				case <-stop:
					return
				}
			}
		})
		return func() {
			close(stop)
			watchdog.Wait()
			p.rdb.Eval(ctx, leaveHash, []string{key}, id)
		}, nil
	}
}

// V6: Redlock needs a majority of several servers, so one of them may fail. But it has no token,
// and servers whose clocks jump expire the lock early.
func redlockArticle(p *process) lockFunc {
	const life = 30 * time.Second // longer than any pause of a holder here
	return func(ctx context.Context) (func(), error) {
		id := rand.Text()
		release := func() {
			for _, rdb := range p.masters {
				rdb.Eval(ctx, compareAndDelete, []string{key}, id)
			}
		}
		err := poll(ctx, func() bool {
			began, got := time.Now(), 0
			for _, rdb := range p.masters {
				if rdb.SetNX(ctx, key, id, life).Val() {
					got++
				} else if got == 0 {
					break // another process has the first, and so probably all
				}
			}
			if got > len(p.masters)/2 && time.Since(began) < life/2 {
				return true
			}
			if got > 0 {
				release()
			}
			return false
		})
		return release, err
	}
}
