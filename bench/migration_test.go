package bench

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/go-redis/cache/v9"
	jetcachego "github.com/mgtv-tech/jetcache-go"
)

// The "before" code of docs/migration.md is compiled here, because only this module has those
// libraries. It does not run.
var (
	_ = goredisRead
	_ = goredisWrite
	_ = jetcacheRead
	_ = jetcacheWrite
)

type user struct {
	ID    int64
	Email string
}

func selectUser(context.Context, int64) (*user, error)                   { return nil, nil }
func selectUsers(context.Context, []int64) (map[int64]*user, error)      { return nil, nil }
func updateEmail(ctx context.Context, id int64, old, email string) error { return nil }

// snippet: go-redis/cache, read
func goredisRead(ctx context.Context, c *goredis.Cache, id int64) (*user, error) {
	u := new(user)
	err := c.Once(&goredis.Item{
		Ctx: ctx, Key: fmt.Sprint("user:", id), Value: u, TTL: 10 * time.Minute,
		Do: func(i *goredis.Item) (any, error) { return selectUser(i.Ctx, id) },
	})
	return u, err
}

// end

// snippet: go-redis/cache, write
func goredisWrite(ctx context.Context, c *goredis.Cache, id int64, old, email string) error {
	if err := updateEmail(ctx, id, old, email); err != nil {
		return err
	}
	return c.Delete(ctx, fmt.Sprint("user:", id))
}

// end

// snippet: jetcache-go, read
func jetcacheRead(
	ctx context.Context, c *jetcachego.T[int64, *user], id int64, friends []int64,
) (*user, map[int64]*user, error) {
	u, err := c.Get(ctx, "user", id, selectUser) // no such row: errors.Is reports the error of WithErrNotFound
	return u, c.MGet(ctx, "user", friends, selectUsers), err
}

// end

// snippet: jetcache-go, write
func jetcacheWrite(ctx context.Context, c *jetcachego.T[int64, *user], id int64, old, email string) error {
	if err := updateEmail(ctx, id, old, email); err != nil {
		return err
	}
	return c.Delete(ctx, fmt.Sprint("user:", id)) // your event handler sends its event to the other processes
}

// end
