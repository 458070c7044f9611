package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// naiveShop is simple cache-aside: GET; on a miss load and SET; after a write DEL. Each line looks
// right.
type naiveShop struct {
	rdb    *redis.Client
	prefix string
	ttl    time.Duration
	load   loadFunc
	db     *database
}

func (n *naiveShop) product(ctx context.Context, id int64) (product, error) {
	var p product
	text, err := n.rdb.Get(ctx, n.key(id)).Bytes()
	if err == nil {
		return p, json.Unmarshal(text, &p)
	}
	if !errors.Is(err, redis.Nil) {
		return p, err
	}
	p, err = n.load(ctx, id) // all callers that miss load at the same time
	if errors.Is(err, sql.ErrNoRows) {
		return p, errNoProduct // every read of this product comes here
	}
	if err != nil {
		return p, err
	}
	if text, err = json.Marshal(p); err != nil {
		return p, err
	}
	// The row may have changed since it was read. Values stored together expire together.
	return p, n.rdb.Set(ctx, n.key(id), text, n.ttl).Err()
}

func (n *naiveShop) setPrice(ctx context.Context, id, cents int64) error {
	if err := n.db.setPrice(ctx, id, cents); err != nil {
		return err
	}
	return n.rdb.Del(ctx, n.key(id)).Err()
}

func (n *naiveShop) key(id int64) string { return n.prefix + strconv.FormatInt(id, 10) }
