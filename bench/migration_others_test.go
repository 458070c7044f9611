//go:build accept

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/dtm-labs/rockscache"
	gocache "github.com/eko/gocache/lib/v4/cache"
	"github.com/eko/gocache/lib/v4/store"
	"github.com/maypok86/otter/v2"
	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"
)

// More "before" code of docs/migration.md: see migration_test.go.
var (
	_ = rueidisRead
	_ = rueidisWrite
	_ = sturdycRead
	_ = sturdycWrite
	_ = newGocache
	_ = gocacheRead
	_ = gocacheWrite
	_ = rocksRead
	_ = rocksWrite
	_ = otterRead
	_ = otterWrite
)

// asideClient has the methods of rueidisaside.CacheAsideClient that the page uses, according to
// https://pkg.go.dev/github.com/redis/rueidis/rueidisaside. This module does not require it.
type asideClient interface {
	Get(
		ctx context.Context, ttl time.Duration, key string, fn func(ctx context.Context, key string) (string, error),
	) (string, error)
	Del(ctx context.Context, key string) error
}

var errNoRow = errors.New("no such row")

func selectCategory(context.Context, int64) (string, error) { return "", nil }

// snippet: rueidisaside, before
// client is a rueidisaside.CacheAsideClient.
func rueidisRead(ctx context.Context, client asideClient, id int64) (*user, error) {
	text, err := client.Get(ctx, 10*time.Minute, fmt.Sprint("user:", id),
		func(ctx context.Context, _ string) (string, error) {
			u, err := selectUser(ctx, id)
			if errors.Is(err, errNoRow) {
				return "_nil_", nil
			}
			b, err := json.Marshal(u)
			return string(b), err
		})
	if err != nil || text == "_nil_" {
		return nil, errors.Join(err, errNoRow)
	}
	u := new(user)
	return u, json.Unmarshal([]byte(text), u)
}

func rueidisWrite(ctx context.Context, client asideClient, id int64, old, email string) error {
	if err := updateEmail(ctx, id, old, email); err != nil {
		return err
	}
	return client.Del(ctx, fmt.Sprint("user:", id))
}

// end

// snippet: sturdyc, before
// c has WithMissingRecordStorage, WithEarlyRefreshes and WithDistributedStorageEarlyRefreshes: a
// storage over rdb, which you have written.
func sturdycRead(ctx context.Context, c *sturdyc.Client[*user], id int64) (*user, error) {
	u, err := c.GetOrFetch(ctx, fmt.Sprint("user:", id), func(ctx context.Context) (*user, error) {
		u, err := selectUser(ctx, id)
		if errors.Is(err, errNoRow) {
			err = sturdyc.ErrNotFound
		}
		return u, err
	})
	if errors.Is(err, sturdyc.ErrOnlyCachedRecords) && u != nil {
		return u, nil // the old value, because the load has failed
	}
	return u, err
}

func sturdycWrite(
	ctx context.Context, c *sturdyc.Client[*user], rdb redis.UniversalClient, id int64, old, email string,
) error {
	if err := updateEmail(ctx, id, old, email); err != nil {
		return err
	}
	err := rdb.Del(ctx, fmt.Sprint("user:", id)).Err()
	c.Delete(fmt.Sprint("user:", id)) // in this process only
	return err
}

// end

// snippet: gocache, before
// memory and redis are caches of gocache, over its stores of ristretto and of Redis.
func newGocache(memory, redis gocache.SetterCacheInterface[string]) *gocache.LoadableCache[string] {
	return gocache.NewLoadable(func(ctx context.Context, key any) (string, []store.Option, error) {
		var id int64
		if _, err := fmt.Sscanf(key.(string), "user:%d", &id); err != nil {
			return "", nil, err
		}
		u, err := selectUser(ctx, id)
		if err != nil {
			return "", nil, err // a row that does not exist is loaded again by each read
		}
		category, err := selectCategory(ctx, id)
		if err != nil {
			return "", nil, err
		}
		b, err := json.Marshal(u)
		return string(b), []store.Option{store.WithTags([]string{"category:" + category})}, err
	}, gocache.NewChain(memory, redis))
}

func gocacheRead(ctx context.Context, c *gocache.LoadableCache[string], id int64) (*user, error) {
	text, err := c.Get(ctx, fmt.Sprint("user:", id))
	if err != nil {
		return nil, err
	}
	u := new(user)
	return u, json.Unmarshal([]byte(text), u)
}

func gocacheWrite(ctx context.Context, c *gocache.LoadableCache[string], id int64, old, email, category string) error {
	if err := updateEmail(ctx, id, old, email); err != nil {
		return err
	}
	return errors.Join(c.Delete(ctx, fmt.Sprint("user:", id)),
		c.Invalidate(ctx, store.WithInvalidateTags([]string{"category:" + category})))
}

// end

// snippet: rockscache, before
// c has StrongConsistency.
func rocksRead(ctx context.Context, c *rockscache.Client, id int64) (*user, error) {
	text, err := c.Fetch2(ctx, fmt.Sprint("user:", id), 10*time.Minute, func() (string, error) {
		u, err := selectUser(ctx, id)
		if errors.Is(err, errNoRow) {
			return "", nil // cached for EmptyExpire
		}
		b, err := json.Marshal(u)
		return string(b), err
	})
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, errNoRow
	}
	u := new(user)
	return u, json.Unmarshal([]byte(text), u)
}

func rocksWrite(ctx context.Context, c *rockscache.Client, id int64, old, email string) error {
	if err := updateEmail(ctx, id, old, email); err != nil {
		return err
	}
	return c.TagAsDeleted2(ctx, fmt.Sprint("user:", id))
}

// end

// snippet: otter, before
func otterRead(ctx context.Context, c *otter.Cache[int64, *user], id int64) (*user, error) {
	return c.Get(ctx, id, otter.LoaderFunc[int64, *user](func(ctx context.Context, id int64) (*user, error) {
		u, err := selectUser(ctx, id)
		if errors.Is(err, errNoRow) {
			err = otter.ErrNotFound // not cached
		}
		return u, err
	}))
}

func otterWrite(ctx context.Context, c *otter.Cache[int64, *user], id int64, old, email string) error {
	if err := updateEmail(ctx, id, old, email); err != nil {
		return err
	}
	c.Invalidate(id) // in this process only
	return nil
}

// end
