package sourcetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// BlockRows is the number of rows of a block. The rows of a block are written at the same time.
// They are not written again later, which would repair what is stale.
const BlockRows = 20

// A Process is one of several processes that cache the rows of tables with the columns id, email
// and n. It has a loader by id and one by e-mail address for each table. Nothing that they cache
// expires.
type Process struct {
	DB      *sqlx.DB
	Redis   *redis.Client
	Cache   *cacheaside.Cache
	ByID    []*cacheaside.Loader[int64, string]
	ByEmail []*cacheaside.Loader[string, string]
	Loads   atomic.Int64 // keys that were loaded

	schema string
	tables []string
}

// Open opens a Process over tables of a schema. Children of a test have no testing.TB: the caller
// closes the Process.
func Open(
	driver, dsn, redisAddr string, o *cacheaside.Options, schema string, tables ...string,
) (_ *Process, err error) {
	p := &Process{schema: schema, tables: tables}
	if p.DB, err = sqlx.Open(driver, dsn); err != nil {
		return nil, err
	}
	p.DB.SetMaxOpenConns(8)
	p.DB.SetMaxIdleConns(8)
	p.Redis = redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	if p.Cache, err = cacheaside.New(p.Redis, o); err != nil {
		return nil, err
	}
	lo := &cacheaside.LoaderOptions{TTL: time.Hour, NullTTL: time.Hour, MemoryTTL: time.Hour, Jitter: -1,
		EarlyRefresh: -1, StaleFor: -1, BreakAt: -1, ErrorTTL: 50 * time.Millisecond}
	for _, table := range tables {
		id, err := cacheaside.NewBatchLoader(p.Cache, table+"-by-id",
			load[int64](p, "SELECT id, CONCAT(email, ' ', n) FROM "+table+" WHERE id IN (?)"), lo)
		if err != nil {
			return nil, err
		}
		email, err := cacheaside.NewBatchLoader(p.Cache, table+"-by-email",
			load[string](p, "SELECT email, CONCAT(id, ' ', n) FROM "+table+" WHERE email IN (?)"), lo)
		if err != nil {
			return nil, err
		}
		p.ByID, p.ByEmail = append(p.ByID, id), append(p.ByEmail, email)
	}
	return p, nil
}

func load[K comparable](p *Process, query string) func(context.Context, []K) (map[K]string, error) {
	return func(ctx context.Context, keys []K) (map[K]string, error) {
		p.Loads.Add(int64(len(keys)))
		text, args, err := sqlx.In(query, keys)
		if err != nil {
			return nil, err
		}
		rows, err := p.DB.QueryContext(ctx, p.DB.Rebind(text), args...)
		if err != nil {
			return nil, err
		}
		defer rows.Close() //nolint:errcheck // rows.Err returns the error
		found := map[K]string{}
		for rows.Next() {
			var key K
			var v string
			if err := rows.Scan(&key, &v); err != nil {
				return nil, err
			}
			found[key] = v
		}
		return found, rows.Err()
	}
}

// Close closes the cache and all connections.
func (p *Process) Close() {
	_ = p.Cache.Close()
	_ = p.Redis.Close()
	_ = p.DB.Close()
}

// Bindings returns the bindings of all loaders.
func (p *Process) Bindings() (all []canal.Binding) {
	for i, table := range p.tables {
		all = append(all, canal.Bind(p.ByID[i], p.schema, table, canal.IntColumn[int64]("id")),
			canal.Bind(p.ByEmail[i], p.schema, table, canal.TextColumn[string]("email")))
	}
	return all
}

// IDs returns the ids of a block.
func IDs(block int) []int64 {
	all := make([]int64, BlockRows)
	for i := range all {
		all[i] = int64(block*BlockRows + i)
	}
	return all
}

// Email returns the e-mail address of the same block as id n.
func Email(n int64) string { return fmt.Sprintf("m%d@x", n) }

func emails(block int) []string {
	all := make([]string, BlockRows)
	for i, id := range IDs(block) {
		all[i] = Email(id)
	}
	return all
}

// Read reads all keys of a block, so that their rows or their absence are cached.
func (p *Process) Read(block int) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for i := range p.tables {
		_, _ = p.ByID[i].GetMany(ctx, IDs(block))
		_, _ = p.ByEmail[i].GetMany(ctx, emails(block))
	}
}

// Keys returns the number of keys of the blocks.
func (p *Process) Keys(blocks int) int { return blocks * BlockRows * 2 * len(p.tables) }

// Stale compares all keys of the blocks with the database, which must not change. It describes
// those that are stale, and returns the share of the keys that it did not have to load.
func (p *Process) Stale(ctx context.Context, blocks int) (stale []string, cached float64, err error) {
	before := p.Loads.Load()
	for i, table := range p.tables {
		var rows []struct {
			ID    int64
			Email string
			N     int64
		}
		if err := p.DB.SelectContext(ctx, &rows, "SELECT id, email, n FROM "+table); err != nil {
			return nil, 0, err
		}
		byID, byEmail := map[int64]string{}, map[string]string{}
		for _, r := range rows {
			byID[r.ID] = fmt.Sprint(r.Email, " ", r.N)
			byEmail[r.Email] = fmt.Sprint(r.ID, " ", r.N)
		}
		for block := range blocks {
			some, err := compare(ctx, p.ByID[i], IDs(block), byID)
			if err != nil {
				return nil, 0, err
			}
			more, err := compare(ctx, p.ByEmail[i], emails(block), byEmail)
			if err != nil {
				return nil, 0, err
			}
			for _, s := range append(some, more...) {
				stale = append(stale, table+" "+s)
			}
		}
	}
	return stale, 1 - float64(p.Loads.Load()-before)/float64(p.Keys(blocks)), nil
}

func compare[K comparable](
	ctx context.Context, l *cacheaside.Loader[K, string], keys []K, want map[K]string,
) (stale []string, err error) {
	var got map[K]string
	for began := time.Now(); time.Since(began) < testenv.Hang; time.Sleep(50 * time.Millisecond) {
		// a failed load is cached for that long
		if got, err = l.GetMany(ctx, keys); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if got[k] != want[k] {
			stale = append(stale, fmt.Sprintf("%v is %q, not %q", k, got[k], want[k]))
		}
	}
	return stale, nil
}
