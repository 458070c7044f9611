package main

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// plain is a process with simple cache-aside: a map and GET; on a miss load and SET; after a write
// DEL. Each line looks right.
type plain struct {
	rdb *redis.Client
	db  *database

	mu     sync.Mutex
	noMap  bool
	memory map[int64]remembered
	ttl    time.Duration // of entries in Redis
}

type remembered struct {
	row   row
	until time.Time
}

func newPlain(address string, db *database, ttl time.Duration) *plain {
	return &plain{ttl: ttl, rdb: redis.NewClient(&redis.Options{Addr: address, PoolSize: poolSize}), db: db,
		memory: map[int64]remembered{}}
}

func (p *plain) get(ctx context.Context, id int64) (row, error) {
	if r, ok := p.remembers(id); ok {
		return r, nil
	}
	var r row
	text, err := p.rdb.Get(ctx, plainKey(id)).Bytes()
	if err == nil && json.Unmarshal(text, &r) == nil {
		p.remember(r)
		return r, nil
	}
	// A miss, or Redis is down: load the row. All callers that miss do so at the same time.
	if r, err = p.db.load(ctx, id); err != nil {
		return r, err // the absence of a row is not cached
	}
	if text, err = json.Marshal(r); err == nil {
		// The row may have changed since it was read. Values stored together expire together.
		_ = p.rdb.Set(ctx, plainKey(id), text, p.ttl).Err()
	}
	p.remember(r)
	return r, nil
}

// invalidate ignores a failed DEL, and does not reach the maps of other processes.
func (p *plain) invalidate(ctx context.Context, ids ...int64) error {
	for _, id := range ids {
		_ = p.rdb.Del(ctx, plainKey(id)).Err()
		p.forget(id)
	}
	return nil
}

// expire removes entries as if their TTL had passed, in Redis and in this process's map.
func (p *plain) expire(ctx context.Context, ids ...int64) error { return p.invalidate(ctx, ids...) }

func (p *plain) remembers(id int64) (row, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.memory[id]
	return m.row, ok && time.Now().Before(m.until)
}

func (p *plain) remember(r row) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.noMap {
		p.memory[r.ID] = remembered{r, time.Now().Add(memoryTTL)}
	}
}

func (p *plain) forget(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.memory, id)
}

func (p *plain) rebuild(on protections) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noMap = !on[plainMap]
	clear(p.memory)
	return nil
}

func (p *plain) key(id int64) string { return plainKey(id) }

func (p *plain) close() { _ = p.rdb.Close() }

func plainKey(id int64) string { return "row:" + strconv.FormatInt(id, 10) }
