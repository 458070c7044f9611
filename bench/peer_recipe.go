package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// The recipe of redis.io, "Redis cache-aside with Go", is code to copy, not a library. This peer is
// written by hand after the page: https://redis.io/docs/latest/develop/use-cases/cache-aside/go/
// (as of May 2026). A row is a hash, read by HGETALL, so encoding/json is not used. A caller that
// misses takes a lock by a script, loads the row, stores it in a transaction of DEL, HSET and
// EXPIRE, and releases the lock by another script. Other callers poll the row. The times are the
// defaults of the page: a lock lasts 2 s, and a poll comes every 25 ms; with Patient, a lock lasts
// longer than the loads. The page only mentions caching the absence of a row, and its code does
// not. A value that was loaded before an Invalidate can be stored after it, because nothing
// compares the lock at the time of the write. It has a feature that cacheaside lacks: it changes
// one field of a row in Redis.
func init() {
	register(Peer{
		Name: "redis.io recipe", Module: "github.com/redis/go-redis/v9", Redis: true, Cluster: true,
		Settings: "HGETALL, a lock by a script, HSET and EXPIRE, polls every 25 ms; fields of a hash instead of " +
			"JSON; written after the page",
		Has: "changes of one field in Redis",
		Open: func(c Config) (Cache, error) {
			r := &recipe{rdb: newClient(c), config: c, ttl: cmp.Or(c.TTL, 30*time.Second), lockTTL: 2 * time.Second}
			if c.Patient {
				r.lockTTL = 30 * time.Second
			}
			return r, nil
		},
	})
}

type recipe struct {
	rdb          redis.UniversalClient
	config       Config
	ttl, lockTTL time.Duration
}

const recipePoll = 25 * time.Millisecond

// The two scripts of the recipe. They return 1 if the caller has taken, or had, the lock.
var (
	recipeTake = redis.NewScript(
		`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0`)
	recipeRelease = redis.NewScript(
		`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
)

func (r *recipe) Get(ctx context.Context, key string) (*Row, error) {
	if row, err := r.read(ctx, key); err != nil || row != nil {
		return row, err
	}
	lock := "lock:recipe:" + key
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	token := hex.EncodeToString(random)
	taken, err := recipeTake.Run(ctx, r.rdb, []string{lock}, token, r.lockTTL.Milliseconds()).Int()
	if err != nil {
		return nil, err
	}
	if taken == 1 {
		defer recipeRelease.Run(ctx, r.rdb, []string{lock}, token)
		return r.load(ctx, key)
	}
	for end := time.Now().Add(r.lockTTL); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(recipePoll):
		}
		if row, err := r.read(ctx, key); err == nil && row != nil {
			return row, nil
		}
	}
	return r.config.Load(ctx, key)
}

// read returns nil if the row is not in Redis.
func (r *recipe) read(ctx context.Context, key string) (*Row, error) {
	fields, err := r.rdb.HGetAll(ctx, "recipe:"+key).Result()
	if err != nil || len(fields) == 0 {
		return nil, err
	}
	row := &Row{Name: fields["name"], Text: fields["text"]}
	var errID, errPrice error
	row.ID, errID = strconv.ParseInt(fields["id"], 10, 64)
	row.Price, errPrice = strconv.ParseFloat(fields["price"], 64)
	return row, errors.Join(errID, errPrice)
}

func (r *recipe) load(ctx context.Context, key string) (*Row, error) {
	row, err := r.config.Load(ctx, key)
	if err != nil {
		return nil, err
	}
	_, err = r.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, "recipe:"+key)
		p.HSet(ctx, "recipe:"+key, "id", row.ID, "name", row.Name, "text", row.Text, "price", row.Price)
		p.Expire(ctx, "recipe:"+key, r.ttl)
		return nil
	})
	return row, err
}

func (r *recipe) Invalidate(ctx context.Context, key string) error {
	return r.rdb.Del(ctx, "recipe:"+key).Err()
}

func (r *recipe) Close() error { return r.rdb.Close() }
