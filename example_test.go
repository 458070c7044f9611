package cacheaside_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

type User struct {
	ID   int64
	Name string
}

// users stands in for a table.
var users = map[int64]string{42: "Ada"}

func loadUser(_ context.Context, id int64) (User, error) {
	name, ok := users[id]
	if !ok {
		return User{}, cacheaside.ErrNotFound // or sql.ErrNoRows from database/sql
	}
	fmt.Println("loading user", id)
	return User{id, name}, nil
}

// patient are options for examples, which also run on machines that are busy with tests. A service
// keeps the default timeouts: pass nil.
var patient = &cacheaside.Options{RedisTimeout: 10 * time.Second}

// Example wraps the reads of a table, and invalidates after a write.
func Example() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	cache, err := cacheaside.New(rdb, patient)
	if err != nil {
		panic(err)
	}
	defer cache.Close()
	byID, err := cacheaside.NewLoader(cache, "user", loadUser, &cacheaside.LoaderOptions{TTL: 10 * time.Minute})
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	for range 2 {
		u, err := byID.Get(ctx, 42)
		fmt.Println(u.Name, err)
	}
	_, err = byID.Get(ctx, 7)
	fmt.Println(errors.Is(err, cacheaside.ErrNotFound))

	users[42] = "Grace" // the write: commit first,
	if err := byID.Invalidate(ctx, 42); err != nil {
		panic(err) // Redis was unreachable: retry, or the old value stays until its TTL
	}
	u, err := byID.Get(ctx, 42)
	fmt.Println(u.Name, err)

	// Output:
	// loading user 42
	// Ada <nil>
	// Ada <nil>
	// true
	// loading user 42
	// Grace <nil>
}

// A Key names a row where its type is unknown: in a writer, in a row of a queue, or in another
// program. Its three fields can be stored and converted back to a Key.
func ExampleLoader_Key() {
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	byID, _ := cacheaside.NewLoader(cache, "user", loadUser, nil)
	byMail, _ := cacheaside.NewLoader(cache, "mail", func(context.Context, string) (int64, error) { return 42, nil },
		&cacheaside.LoaderOptions{Version: "2"})

	for _, k := range []cacheaside.Key{byID.Key(42), byMail.Key("ada@example.com")} {
		fmt.Println(k) // shows only a hash, because keys may be private
		fmt.Println(k.Loader, k.Version, k.Text)
		fmt.Println(k == cacheaside.Key{Loader: k.Loader, Version: k.Version, Text: k.Text})
	}
	// Output:
	// user key#98822f0aee6fcb1b
	// user 1 42
	// true
	// mail key#86c99beb955e19ee
	// mail 2 ada@example.com
	// true
}

// A program that only writes can invalidate without loaders, by their names.
func ExampleCache_InvalidateKeys() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	ctx := context.Background()
	row := "old"                              // of a table
	reader, _ := cacheaside.New(rdb, patient) // one process
	defer reader.Close()
	names, _ := cacheaside.NewLoader(reader, "name",
		func(context.Context, int64) (string, error) { return row, nil }, nil)
	fmt.Println(names.Get(ctx, 42))

	writer, _ := cacheaside.New(rdb, patient) // another process
	defer writer.Close()
	row = "new" // the write: commit first,
	err := writer.InvalidateKeys(ctx,
		cacheaside.Key{Loader: "name", Text: "42"},
		cacheaside.Key{Loader: "orders-of", Text: "42"}, // one row may feed several loaders
		cacheaside.Key{Loader: "search", All: true},     // or all keys of a loader
	)
	if failed, ok := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err); ok {
		for k, err := range failed.Errs { // retry these
			fmt.Println(k, err)
		}
	}
	// Without Fresh, the reader's memory may be some milliseconds behind.
	fmt.Println(names.Get(ctx, 42, cacheaside.Fresh))
	// Output:
	// old <nil>
	// new <nil>
}

// A load can set the TTL of its value.
func ExampleSetTTL() {
	// Without Redis: process memory only.
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	tokens, _ := cacheaside.NewLoader(cache, "token", func(ctx context.Context, user string) (string, error) {
		// From a service that sets the expiry.
		token, expires := "secret of "+user, time.Now().Add(5*time.Minute)
		cacheaside.SetTTL(ctx, time.Until(expires)-time.Minute)
		return token, nil
	}, nil)
	token, err := tokens.Get(context.Background(), "ada")
	fmt.Println(token, err)
	// Output: secret of ada <nil>
}

// Refresh reloads a value after a change without an invalidation.
func ExampleLoader_Refresh() {
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	rate := 1.10
	rates, _ := cacheaside.NewLoader(cache, "rate",
		func(context.Context, string) (float64, error) { return rate, nil }, nil)
	ctx := context.Background()
	v, _ := rates.Get(ctx, "EUR")
	fmt.Println(v)
	rate = 1.12
	v, err := rates.Refresh(ctx, "EUR")
	fmt.Println(v, err)
	// Output:
	// 1.1
	// 1.12 <nil>
}

// An *Error contains the key that failed. Its text shows only a hash of the key.
func ExampleError() {
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	mails, _ := cacheaside.NewLoader(cache, "mail",
		func(context.Context, string) (string, error) { return "", errors.New("connection refused") }, nil)
	_, err := mails.Get(context.Background(), "ada@example.com")
	fmt.Println(err)
	if e, ok := errors.AsType[*cacheaside.Error](err); ok {
		fmt.Println(e.Op, e.Loader, e.Key)
	}
	// Output:
	// cacheaside: get mail key#86c99beb955e19ee: connection refused
	// get mail ada@example.com
}

// keySet is an exact filter for a small table. Package bloom has filters for large tables.
type keySet struct {
	mu   sync.RWMutex
	keys map[string]bool
}

func (k *keySet) MightContainNow(key string) (may, known bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.keys[key], true
}

func (k *keySet) MightContain(_ context.Context, key string) (bool, error) {
	may, _ := k.MightContainNow(key)
	return may, nil
}

func (k *keySet) MightContainMany(_ context.Context, keys []string) ([]bool, error) {
	may := make([]bool, len(keys))
	for i, key := range keys {
		may[i], _ = k.MightContainNow(key)
	}
	return may, nil
}

func (k *keySet) Inserting(_ context.Context, keys []string) (committed func(context.Context) error, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		k.keys[key] = true
	}
	return nil, nil // nothing to do after the commit
}

func (k *keySet) NotFound(int) {}

// Insert rows of a loader with a filter through Inserting: it adds their keys before the
// transaction commits.
func ExampleLoader_Inserting() {
	rows := map[int64]string{42: "Ada"} // stands in for a table
	load := func(_ context.Context, id int64) (string, error) {
		name, ok := rows[id]
		if !ok {
			return "", cacheaside.ErrNotFound
		}
		fmt.Println("loading user", id)
		return name, nil
	}
	cache, _ := cacheaside.NewLocal(nil) // works the same with Redis
	defer cache.Close()
	filter := &keySet{keys: map[string]bool{"42": true}} // the keys of all rows
	names, err := cacheaside.NewLoader(cache, "name", load, &cacheaside.LoaderOptions{Filter: filter})
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	fmt.Println(names.Get(ctx, 42))
	_, err = names.Get(ctx, 7)
	// At most one lookup a second reaches the table.
	fmt.Println(errors.Is(err, cacheaside.ErrNotFound), names.Stats().Filtered)

	// tx, err := db.BeginTx(ctx, nil)
	committed, err := names.Inserting(ctx, 7)
	if err != nil {
		panic(err) // and tx.Rollback()
	}
	rows[7] = "Grace" // tx.ExecContext(ctx, "INSERT INTO …"), tx.Commit()
	if err := committed(context.WithoutCancel(ctx)); err != nil {
		panic(err) // the row exists: repeat committed
	}
	fmt.Println(names.Get(ctx, 7))
	// Output:
	// loading user 42
	// Ada <nil>
	// true 1
	// loading user 7
	// Grace <nil>
}
