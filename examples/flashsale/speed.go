package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/lock"
)

// measurement measures how fast a stock is sold. The stock is divided into segments, and each
// segment has its own lock. Each purchase holds its lock for Work. The stock is in Redis, because
// SQLite allows only one write at a time.
type measurement struct {
	Prefix   string
	Segments int
	Buyers   int // concurrent buyers in each process
	Work     time.Duration
	For      time.Duration
}

// plenty is a stock that cannot be sold out.
const plenty = 1_000_000

func (m *measurement) stock(segment int) string { return fmt.Sprint(m.Prefix, ":stock:", segment) }

func (m *measurement) prepare(p *process) (func(context.Context) result, error) {
	locker, err := lock.NewRedis(p.rdb, &lock.Options{Prefix: m.Prefix + ":lock:"})
	if err != nil {
		return nil, err
	}
	p.close = append(p.close, locker.Close)
	segments, err := lock.NewSegmented(locker, m.Segments)
	return func(ctx context.Context) result { return m.run(ctx, p, segments) }, err
}

func (m *measurement) run(ctx context.Context, p *process, segments *lock.Segmented) (r result) {
	began := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	none := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return r.Bought == 0
	}
	for range m.Buyers {
		all.Go(func() {
			for (time.Since(began) < m.For || none()) && ctx.Err() == nil {
				if m.buy(ctx, p, segments) != nil {
					continue
				}
				mu.Lock()
				r.Bought++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	r.Took = time.Since(began)
	return r
}

func (m *measurement) buy(ctx context.Context, p *process, segments *lock.Segmented) error {
	segment, err := segments.Acquire(ctx, "stock", -1, nil)
	if err != nil {
		return err
	}
	key := m.stock(segment.Index)
	left, err := p.rdb.Get(ctx, key).Int()
	if err == nil {
		time.Sleep(m.Work)
		err = p.rdb.Set(ctx, key, left-1, 0).Err()
	}
	return errors.Join(err, segment.Release())
}

// speed is the result of a measurement.
type speed struct {
	segments int
	perSec   float64
	lost     int // sold, but not subtracted from the stock
}

// measure lets several processes sell for a while, on the Redis at address.
func measure(ctx context.Context, address string, m measurement) (s speed, err error) {
	s.segments = m.Segments
	m.Prefix = "cacheaside-flashsale-" + rand.Text()
	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer rdb.Close()
	defer func() { err = errors.Join(err, sweep(context.WithoutCancel(ctx), rdb, m.Prefix)) }()
	for i := range m.Segments {
		if err := rdb.Set(ctx, m.stock(i), plenty, 0).Err(); err != nil {
			return s, fmt.Errorf("the Redis at %s: %w", address, err)
		}
	}
	all, err := startAll(ctx, task{Redis: []string{address}, Measure: &m})
	defer func() {
		for _, p := range all {
			p.kill()
		}
	}()
	if err == nil {
		err = begin(all, false)
	}
	if err != nil {
		return s, err
	}
	bought, missing := 0, m.Segments*plenty
	for _, p := range all {
		r, err := p.result()
		if err != nil {
			return s, err
		}
		bought += r.Bought
		s.perSec += float64(r.Bought) / max(r.Took.Seconds(), 1e-9)
	}
	for i := range m.Segments {
		left, err := rdb.Get(ctx, m.stock(i)).Int()
		if err != nil {
			return s, err
		}
		missing -= left
	}
	s.lost = bought - missing
	return s, nil
}

// sweep deletes what a measurement has left in the user's Redis.
func sweep(ctx context.Context, rdb *redis.Client, prefix string) error {
	var errs []error
	keys := rdb.Scan(ctx, 0, prefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		errs = append(errs, rdb.Del(ctx, keys.Val()).Err())
	}
	return errors.Join(append(errs, keys.Err())...)
}
