package main

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
)

// protected is a process that uses the library.
type protected struct {
	rdb    *redis.Client
	db     *database
	config config
	filter *bloom.Local

	mu      sync.Mutex
	now     *caches
	retired sync.WaitGroup // replaced caches, which are closed after their last read
}

// caches has the cache, loader and filter of the current options.
type caches struct {
	cache *cacheaside.Cache
	rows  *cacheaside.Loader[int64, row]
	users sync.WaitGroup
}

func newProtected(address string, db *database, c config) (*protected, error) {
	bound := max(c.redis, 3*time.Second) // the client's time-out must not be shorter
	p := &protected{rdb: redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true, PoolSize: poolSize,
		ReadTimeout: bound, WriteTimeout: bound, PoolTimeout: bound}), db: db, config: c}
	var err error
	if p.filter, err = bloom.NewLocal(10_000, 0.01); err != nil {
		return nil, err
	}
	var texts []string
	for id := range allRows() {
		texts = append(texts, strconv.FormatInt(id, 10))
	}
	// The lab inserts no rows, so there are no transactions to wait for.
	if _, err := p.filter.Rebuild(context.Background(), bloom.Keys(texts...),
		&bloom.RebuildOptions{Settle: -1}); err != nil {
		return nil, err
	}
	return p, p.rebuild(usualProtections())
}

// rebuild creates the cache again with other options. Reads in progress finish with the old one.
func (p *protected) rebuild(on protections) error {
	// the page shows the events
	options := &cacheaside.Options{MaxStaleness: maxStaleness, MaxLoads: -1, Logger: slog.New(slog.DiscardHandler),
		RedisTimeout: p.config.redis, LeaseTTL: min(4*p.config.redis, time.Minute), QueueTimeout: p.config.connect}
	if on[maxLoads] {
		options.MaxLoads = connections / processes
	}
	if !on[memory] {
		options.MemoryBytes = -1
	}
	c := &caches{}
	var err error
	if c.cache, err = cacheaside.New(p.rdb, options); err != nil {
		return err
	}
	if c.rows, err = cacheaside.NewLoader(c.cache, "row", p.load, p.loaderOptions(on)); err != nil {
		c.cache.Close()
		return err
	}
	p.mu.Lock()
	old := p.now
	p.now = c
	p.mu.Unlock()
	if old != nil {
		p.retired.Go(func() {
			old.users.Wait()
			old.cache.Close()
		})
	}
	return nil
}

func (p *protected) loaderOptions(on protections) *cacheaside.LoaderOptions {
	o := &cacheaside.LoaderOptions{TTL: ttl, MemoryTTL: memoryTTL, StaleFor: -1, EarlyRefresh: -1, BreakAt: -1,
		NullTTL: cacheaside.MinTTL}
	if on[stale] {
		o.StaleFor = staleFor
	}
	if on[early] {
		o.EarlyRefresh = 1
	}
	if on[breaker] {
		o.BreakAt = 0.9
	}
	if on[nulls] {
		o.NullTTL = ttl
	}
	if on[whenDown] {
		o.RedisDown = cacheaside.StaleWhenDown
	}
	if on[filter] {
		o.Filter = p.filter
	}
	return o
}

func (p *protected) load(ctx context.Context, id int64) (row, error) {
	r, err := p.db.load(ctx, id)
	if errors.Is(err, errNoRow) {
		return r, cacheaside.ErrNotFound
	}
	return r, err
}

// use returns the current caches, and a function to call when they are no longer used.
func (p *protected) use() (*caches, func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.users.Add(1)
	return p.now, p.now.users.Done
}

func (p *protected) get(ctx context.Context, id int64) (row, error) {
	c, done := p.use()
	defer done()
	r, err := c.rows.Get(ctx, id)
	if errors.Is(err, cacheaside.ErrNotFound) {
		return r, errNoRow
	}
	return r, err
}

func (p *protected) invalidate(ctx context.Context, ids ...int64) error {
	c, done := p.use()
	defer done()
	return c.rows.Invalidate(ctx, ids...)
}

func (p *protected) expire(ctx context.Context, ids ...int64) error {
	c, done := p.use()
	defer done()
	return c.rows.Expire(ctx, ids...)
}

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// remembers returns the row in memory: a Get whose context has ended only reads memory.
func (p *protected) remembers(id int64) (row, bool) {
	c, done := p.use()
	defer done()
	r, err := c.rows.Get(over, id)
	return r, err == nil
}

func (p *protected) stats() cacheaside.Stats {
	c, done := p.use()
	defer done()
	return c.rows.Stats()
}

func (p *protected) key(id int64) string {
	return "cacheaside:row:1:{" + strconv.FormatInt(id, 10) + "}"
}

// close closes the client first, unlike a normal program: its links have been cut, and a command in
// progress would be retried for the whole redis-timeout.
func (p *protected) close() {
	_ = p.rdb.Close()
	p.retired.Wait()
	p.now.cache.Close()
	_ = p.filter.Close()
}

const (
	ttl          = 15 * time.Second
	memoryTTL    = 5 * time.Second
	staleFor     = 10 * time.Minute
	maxStaleness = 2 * time.Second
	poolSize     = 64
)
