package cacheaside_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
)

// The "after" code of docs/migration.md for one library each. Example_migratedFromOthers runs it.

// snippet: rueidisaside, after
func newUsers(cache *cacheaside.Cache, db *sqlx.DB) (*cacheaside.Loader[int64, account], error) {
	return cacheaside.NewLoader(cache, "user-one", func(ctx context.Context, id int64) (u account, err error) {
		// sql.ErrNoRows: Get returns ErrNotFound, and caches that for NullTTL
		return u, db.GetContext(ctx, &u, "SELECT id, email FROM users WHERE id = ?", id)
	}, &cacheaside.LoaderOptions{TTL: 10 * time.Minute})
}

// end

// snippet: sturdyc, after
func newEarlyUsers(cache *cacheaside.Cache, db *sqlx.DB) (*cacheaside.Loader[int64, account], error) {
	return cacheaside.NewLoader(cache, "user-early", func(ctx context.Context, id int64) (u account, err error) {
		return u, db.GetContext(ctx, &u, "SELECT id, email FROM users WHERE id = ?", id)
	}, &cacheaside.LoaderOptions{
		TTL:          10 * time.Minute,
		EarlyRefresh: 1,                // reload in the background, at random before the TTL ends
		StaleFor:     24 * time.Hour,   // serve the old value while loads fail
		NullTTL:      10 * time.Minute, // of rows that do not exist
	})
}

// end

// snippet: gocache, after
type labelled struct {
	account
	Category string
}

func newLabelled(cache *cacheaside.Cache, db *sqlx.DB) (*cacheaside.Loader[int64, labelled], error) {
	return cacheaside.NewLoader(cache, "labelled-user", func(ctx context.Context, id int64) (m labelled, err error) {
		return m, db.GetContext(ctx, &m, "SELECT id, email, 'new' AS category FROM users WHERE id = ?", id)
	}, &cacheaside.LoaderOptions{
		TTL:    10 * time.Minute,
		Groups: cacheaside.GroupsOf(func(_ int64, m labelled) []string { return []string{"category:" + m.Category} }),
	})
}

func changeCategory(ctx context.Context, users *cacheaside.Loader[int64, labelled], category string) error {
	return users.InvalidateGroup(ctx, "category:"+category) // after the commit
}

// end

// snippet: rockscache, after
func newRemoteUsers(cache *cacheaside.Cache, db *sqlx.DB) (*cacheaside.Loader[int64, account], error) {
	return cacheaside.NewLoader(cache, "user-remote", func(ctx context.Context, id int64) (u account, err error) {
		return u, db.GetContext(ctx, &u, "SELECT id, email FROM users WHERE id = ?", id)
	}, &cacheaside.LoaderOptions{
		TTL:       10 * time.Minute,
		MemoryTTL: -1, // no memory tier: each read asks Redis, and sees every Invalidate that has returned
	})
}

// end

// snippet: otter, after
func newLocalUsers(db *sqlx.DB) (*cacheaside.Cache, *cacheaside.Loader[int64, account], error) {
	cache, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: 64 << 20}) // no Redis
	if err != nil {
		return nil, nil, err
	}
	users, err := cacheaside.NewLoader(cache, "user", func(ctx context.Context, id int64) (u account, err error) {
		return u, db.GetContext(ctx, &u, "SELECT id, email FROM users WHERE id = ?", id)
	}, &cacheaside.LoaderOptions{TTL: 10 * time.Minute})
	return cache, users, err
}

// end

// Loaders in the place of caches of other libraries.
func Example_migratedFromOthers() {
	cache, a, end := openAccounts("migratedfromothers")
	defer end()
	ctx := context.Background()
	for _, newLoader := range []func(*cacheaside.Cache, *sqlx.DB) (*cacheaside.Loader[int64, account], error){
		newUsers, newEarlyUsers, newRemoteUsers,
	} {
		users, err := newLoader(cache, a.db)
		if err != nil {
			log.Fatal(err)
		}
		u, err := users.Get(ctx, 1)
		_, missing := users.Get(ctx, 2)
		fmt.Println(u.Email, err, errors.Is(missing, cacheaside.ErrNotFound))
	}
	tagged, err := newLabelled(cache, a.db)
	if err != nil {
		log.Fatal(err)
	}
	m, err := tagged.Get(ctx, 1)
	fmt.Println(m.Category, err, changeCategory(ctx, tagged, m.Category))
	local, users, err := newLocalUsers(a.db)
	if err != nil {
		log.Fatal(err)
	}
	defer local.Close()
	u, err := users.Get(ctx, 1)
	fmt.Println(u.Email, err)
	// Output:
	// ann@old.example <nil> true
	// ann@old.example <nil> true
	// ann@old.example <nil> true
	// new <nil> <nil>
	// ann@old.example <nil>
}
