package cacheaside_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// Book is a row of the table books.
type Book struct {
	ID    int64
	Title string
}

// books opens a database with three books.
func books(name string) *sqlx.DB {
	db := sqlx.MustOpen("sqlite", "file:"+name+"?mode=memory&cache=shared")
	db.MustExec("CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT)")
	db.MustExec("INSERT INTO books VALUES (1, 'Emma'), (2, 'Dracula'), (3, 'Ulysses')")
	return db
}

// local creates a cache without Redis, with process memory only. The examples that use it work the
// same with Redis.
func local() *cacheaside.Cache {
	cache, err := cacheaside.NewLocal(nil)
	if err != nil {
		log.Fatal(err)
	}
	return cache
}

// Create one Cache per process, on its Redis client. New does not contact Redis, so a process can
// start while Redis is down.
func ExampleNew() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{
		Addr:                  server.Addr(),
		ContextTimeoutEnabled: true, // keeps deadlines while Redis hangs
	})
	defer rdb.Close() // close it after the Cache
	cache, err := cacheaside.New(rdb, &cacheaside.Options{
		Prefix: "shop", // of all keys in Redis; equal in all processes that share them
		// Concurrent queries that the database can handle, divided by the number of processes.
		MaxLoads: 20,
	})
	if err != nil {
		log.Fatal(err) // an invalid option
	}
	defer cache.Close()
	fmt.Println(cache.Stats().Gets)
	// Output: 0
}

// A Cache without Redis serves a program of one process, and tests.
func ExampleNewLocal() {
	cache, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: 16 << 20})
	if err != nil {
		log.Fatal(err) // an invalid option
	}
	defer cache.Close()
	squares, err := cacheaside.NewLoader(cache, "square", func(_ context.Context, n int) (int, error) {
		fmt.Println("computed")
		return n * n, nil
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(squares.Get(context.Background(), 3))
	fmt.Println(squares.Get(context.Background(), 3))
	// Output:
	// computed
	// 9 <nil>
	// 9 <nil>
}

// Create a Loader for each kind of row. A missing row is sql.ErrNoRows, as the database reports it.
func ExampleNewLoader() {
	db, cache := books("newloader"), local()
	defer db.Close()
	defer cache.Close()
	titles, err := cacheaside.NewLoader(cache, "book",
		func(ctx context.Context, id int64) (b Book, err error) {
			return b, db.GetContext(ctx, &b, "SELECT id, title FROM books WHERE id = ?", id)
		}, nil)
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	fmt.Println(titles.Get(ctx, 1))
	_, err = titles.Get(ctx, 4)
	fmt.Println(errors.Is(err, cacheaside.ErrNotFound), errors.Is(err, sql.ErrNoRows))
	// Output:
	// {1 Emma} <nil>
	// true false
}

// A load function that reads many rows in one query.
func ExampleNewBatchLoader() {
	db, cache := books("newbatchloader"), local()
	defer db.Close()
	defer cache.Close()
	books, err := cacheaside.NewBatchLoader(cache, "book",
		func(ctx context.Context, ids []int64) (map[int64]Book, error) {
			fmt.Println("one query for", len(ids))
			query, args, err := sqlx.In("SELECT id, title FROM books WHERE id IN (?)", ids)
			if err != nil {
				return nil, err
			}
			var rows []Book
			if err := db.SelectContext(ctx, &rows, db.Rebind(query), args...); err != nil {
				return nil, err
			}
			found := make(map[int64]Book)
			for _, b := range rows {
				found[b.ID] = b
			}
			return found, nil // an id that is not in the map has no row
		}, nil)
	if err != nil {
		log.Fatal(err)
	}

	found, err := books.GetMany(context.Background(), []int64{1, 2, 3, 4})
	fmt.Println(slices.Sorted(maps.Keys(found)), err)
	// Output:
	// one query for 4
	// [1 2 3] <nil>
}

func ExampleLoader_Get() {
	cache := local()
	defer cache.Close()
	byID, _ := cacheaside.NewLoader(cache, "book", func(_ context.Context, id int64) (Book, error) {
		switch id {
		case 1:
			return Book{1, "Emma"}, nil
		case 2:
			return Book{}, cacheaside.ErrNotFound
		}
		return Book{}, errors.New("connection refused")
	}, nil)

	for id := range int64(3) {
		book, err := byID.Get(context.Background(), id)
		switch {
		case errors.Is(err, cacheaside.ErrNotFound):
			fmt.Println(id, "there is no such book")
		case err != nil:
			// *cacheaside.Error: contains the hash of the key.
			fmt.Println(id, "it is not known:", errors.Unwrap(err))
		default:
			fmt.Println(id, book.Title)
		}
	}
	// Output:
	// 0 it is not known: connection refused
	// 1 Emma
	// 2 there is no such book
}

// The failure of one key does not affect the others.
func ExampleLoader_GetMany() {
	cache := local()
	defer cache.Close()
	titles, _ := cacheaside.NewLoader(cache, "title", func(_ context.Context, id int64) (string, error) {
		switch id {
		case 3:
			return "", errors.New("connection refused")
		case 4:
			return "", cacheaside.ErrNotFound
		}
		return fmt.Sprint("book ", id), nil
	}, nil)

	ids := []int64{1, 2, 3, 4}
	found, err := titles.GetMany(context.Background(), ids)
	failed, _ := errors.AsType[*cacheaside.BatchError[int64]](err)
	for _, id := range ids {
		if title, ok := found[id]; ok {
			fmt.Println(id, title)
		} else if failed != nil && failed.Errs[id] != nil {
			fmt.Println(id, "failed")
		} else {
			fmt.Println(id, "does not exist")
		}
	}
	// Output:
	// 1 book 1
	// 2 book 2
	// 3 failed
	// 4 does not exist
}

// A batch load without the rows of some keys names those keys. Otherwise they would count as
// missing rows.
func ExampleBatchError() {
	cache := local()
	defer cache.Close()
	titles, _ := cacheaside.NewBatchLoader(cache, "title",
		func(_ context.Context, ids []int64) (map[int64]string, error) {
			found := map[int64]string{1: "Emma"} // from one shard; another is down
			failed := &cacheaside.BatchError[int64]{Errs: make(map[int64]error)}
			for _, id := range ids {
				if id%2 == 0 {
					failed.Errs[id] = errors.New("the shard is down")
				}
			}
			return found, failed
		}, nil)
	found, err := titles.GetMany(context.Background(), []int64{1, 2})
	fmt.Println(found, err != nil)
	// Output: map[1:Emma] true
}

// Invalidate after the commit of a write. After an error, repeat the invalidation but not the
// write, or use a consistency.Writer.
func ExampleLoader_Invalidate() {
	db, cache := books("invalidate"), local()
	defer db.Close()
	defer cache.Close()
	titles, _ := cacheaside.NewLoader(cache, "title", func(ctx context.Context, id int64) (title string, err error) {
		return title, db.GetContext(ctx, &title, "SELECT title FROM books WHERE id = ?", id)
	}, nil)
	ctx := context.Background()
	fmt.Println(titles.Get(ctx, 3))

	if _, err := db.ExecContext(ctx, "UPDATE books SET title = 'Odyssey' WHERE id = 3"); err != nil {
		log.Fatal(err)
	}
	if err := titles.Invalidate(context.WithoutCancel(ctx), 3); err != nil {
		log.Fatal(err)
	}
	fmt.Println(titles.Get(ctx, 3))
	// Output:
	// Ulysses <nil>
	// Odyssey <nil>
}

// After an import, invalidate everything with one command.
func ExampleLoader_InvalidateAll() {
	db, cache := books("invalidateall"), local()
	defer db.Close()
	defer cache.Close()
	titles, _ := cacheaside.NewLoader(cache, "title", func(ctx context.Context, id int64) (title string, err error) {
		return title, db.GetContext(ctx, &title, "SELECT title FROM books WHERE id = ?", id)
	}, nil)
	ctx := context.Background()
	fmt.Println(titles.GetMany(ctx, []int64{1, 2}))

	db.MustExec("UPDATE books SET title = upper(title)")
	if err := titles.InvalidateAll(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(titles.GetMany(ctx, []int64{1, 2}))
	// Output:
	// map[1:Emma 2:Dracula] <nil>
	// map[1:EMMA 2:DRACULA] <nil>
}

// All keys of a loader as one Key, for an outbox or another program.
func ExampleLoader_AllKeys() {
	cache := local()
	defer cache.Close()
	titles, _ := cacheaside.NewLoader(cache, "title",
		func(context.Context, int64) (string, error) { return "Emma", nil }, nil)
	ctx := context.Background()
	titles.Get(ctx, 1)
	fmt.Println(cache.InvalidateKeys(ctx, titles.AllKeys()))
	titles.Get(ctx, 1)
	fmt.Println(titles.Stats().Loads)
	// Output:
	// <nil>
	// 2
}

// Warm the cache before traffic: at most 100 rows a second, without rows that another process has
// warmed.
func ExampleLoader_Warm() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	cache, _ := cacheaside.New(rdb, patient)
	defer cache.Close()
	titles, _ := cacheaside.NewLoader(cache, "title",
		func(_ context.Context, id int64) (string, error) { return fmt.Sprint("book ", id), nil }, nil)

	ctx := context.Background()
	popular := []int64{3, 1, 2}
	for range 2 {
		if err := titles.Warm(ctx, slices.Values(popular), 100, nil); err != nil {
			fmt.Println(err)
		}
		fmt.Println(titles.Stats().Loads, "loads")
	}
	// Output:
	// 3 loads
	// 3 loads
}

// To rule out a loader's cache as the cause of a problem, let its reads bypass it.
func ExampleLoader_Bypass() {
	cache := local()
	defer cache.Close()
	titles, _ := cacheaside.NewLoader(cache, "title",
		func(context.Context, int64) (string, error) { return "Emma", nil }, nil)
	ctx := context.Background()
	for _, on := range []bool{false, true, false} {
		titles.Bypass(on)
		titles.Get(ctx, 1)
	}
	s := titles.Stats()
	fmt.Println(s.Gets, "gets,", s.Loads, "loads,", s.Bypassed, "of them due to Bypass")
	// Output: 3 gets, 2 loads, 1 of them due to Bypass
}

// Statistics of all loaders together, or of one.
func ExampleCache_Stats() {
	cache := local()
	defer cache.Close()
	titles, _ := cacheaside.NewLoader(cache, "title",
		func(context.Context, int64) (string, error) { return "", cacheaside.ErrNotFound }, nil)
	prices, _ := cacheaside.NewLoader(cache, "price",
		func(context.Context, int64) (int, error) { return 0, errors.New("connection refused") }, nil)
	ctx := context.Background()
	titles.Get(ctx, 1)
	prices.Get(ctx, 1)
	fmt.Println(cache.Stats().Loads, cache.Stats().LoadErrors)
	fmt.Println(titles.Stats().Loads, titles.Stats().LoadErrors) // a missing row is not an error
	// Output:
	// 2 1
	// 1 0
}

// Fresh is for a read that must see the latest write of another process: it bypasses the memory of
// this process.
func ExampleReadOption() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	row := "old"
	load := func(context.Context, int64) (string, error) { return row, nil }
	here, _ := cacheaside.New(rdb, patient) // one process
	defer here.Close()
	reader, _ := cacheaside.NewLoader(here, "row", load, nil)
	there, _ := cacheaside.New(rdb, patient) // another process
	defer there.Close()
	writer, _ := cacheaside.NewLoader(there, "row", load, nil)

	ctx := context.Background()
	reader.Get(ctx, 1)
	row = "new"
	if err := writer.Invalidate(ctx, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(reader.Get(ctx, 1, cacheaside.Fresh))
	// Output: new <nil>
}

// After is for a read that must see a certain write, for example that of the same user. Its token
// comes from Collect, and fits into a cookie.
func ExampleAfter() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	row := "old"
	load := func(context.Context, int64) (string, error) { return row, nil }
	here, _ := cacheaside.New(rdb, patient) // the process that serves the next request
	defer here.Close()
	reader, _ := cacheaside.NewLoader(here, "row", load, nil)
	there, _ := cacheaside.New(rdb, patient) // the process that writes
	defer there.Close()
	writer, _ := cacheaside.NewLoader(there, "row", load, nil)

	reader.Get(context.Background(), 1)
	row = "new"
	ctx, written := cacheaside.Collect(context.Background())
	if err := writer.Invalidate(ctx, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(reader.Get(context.Background(), 1, cacheaside.After(written())))
	// Output: new <nil>
}

// Collect takes in only invalidations that are made with its context.
func ExampleCollect() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	cache, _ := cacheaside.New(rdb, patient)
	defer cache.Close()
	titles, _ := cacheaside.NewLoader(cache, "title",
		func(context.Context, int64) (string, error) { return "old", nil }, nil)

	ctx, written := cacheaside.Collect(context.Background())
	fmt.Println(written() == "")
	titles.Invalidate(context.Background(), 1) // with another context
	fmt.Println(written() == "")
	titles.Invalidate(ctx, 1)
	fmt.Println(written() == "")
	// Output:
	// true
	// true
	// false
}

// page is a key that is a struct.
type page struct {
	Path string
	No   int
}

// Keys other than strings, integers and TextMarshalers need a function that returns their text.
func ExampleKeyOf() {
	cache := local()
	defer cache.Close()
	pages, err := cacheaside.NewLoader(cache, "page", func(_ context.Context, p page) (string, error) {
		return fmt.Sprint("page ", p.No, " of ", p.Path), nil
	}, &cacheaside.LoaderOptions{
		Key: cacheaside.KeyOf(func(p page) string { return fmt.Sprint(p.No, " ", p.Path) }),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(pages.Get(context.Background(), page{"/news", 2}))
	fmt.Println(pages.Key(page{"/news", 2}).Text)
	// Output:
	// page 2 of /news <nil>
	// 2 /news
}

// The column ignores case, so all spellings of an address are one key.
func ExampleNormalizeOf() {
	cache := local()
	defer cache.Close()
	users, err := cacheaside.NewLoader(cache, "user-by-email", func(_ context.Context, email string) (string, error) {
		return "the row of " + email, nil
	}, &cacheaside.LoaderOptions{Normalize: cacheaside.NormalizeOf(strings.ToLower)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(users.Get(context.Background(), "Ada@example.com"))
	fmt.Println(users.Get(context.Background(), "ada@example.com"))
	fmt.Println(users.Stats().Loads)
	// Output:
	// the row of ada@example.com <nil>
	// the row of ada@example.com <nil>
	// 1
}

// Callers share values, so a caller that changes a value needs its own copy.
func ExampleCloneOf() {
	cache := local()
	defer cache.Close()
	tags, err := cacheaside.NewLoader(cache, "tags", func(context.Context, int64) ([]string, error) {
		return []string{"novel", "english"}, nil
	}, &cacheaside.LoaderOptions{Clone: cacheaside.CloneOf(slices.Clone[[]string])})
	if err != nil {
		log.Fatal(err)
	}
	mine, _ := tags.Get(context.Background(), 1)
	slices.Sort(mine)
	fmt.Println(mine)
	fmt.Println(tags.Get(context.Background(), 1))
	// Output:
	// [english novel]
	// [novel english] <nil>
}

// index is a value that grows while it is used. The library does not look behind its lock.
type index struct {
	mu    sync.Mutex
	words map[string][]int
}

// weight returns the approximate size of the index in bytes.
func (i *index) weight() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	bytes := int64(0)
	for word, places := range i.words {
		bytes += int64(100 + len(word) + 8*cap(places))
	}
	return bytes
}

// A value with a lock must report its own size, so that Options.MemoryBytes holds.
func ExampleWeightOf() {
	cache := local()
	defer cache.Close()
	indexes, err := cacheaside.NewLoader(cache, "index", func(context.Context, int64) (*index, error) {
		return &index{words: map[string][]int{"emma": {1, 7}}}, nil
	}, &cacheaside.LoaderOptions{Weight: cacheaside.WeightOf((*index).weight)})
	if err != nil {
		log.Fatal(err)
	}
	x, err := indexes.Get(context.Background(), 1)
	fmt.Println(x.words, err)
	// Output:
	// map[emma:[1 7]] <nil>
}

// aesGCM is a Codec that encrypts the output of another one.
type aesGCM struct {
	cacheaside.Codec
	cipher.AEAD
}

// Stored in each entry: never change it or reuse it for another format.
func (aesGCM) Number() uint8 { return 8 }

func (a aesGCM) Encode(v any) ([]byte, error) {
	plain, err := a.Codec.Encode(v)
	if err != nil {
		return nil, err
	}
	return a.Seal(nil, nil, plain, nil), nil
}

func (a aesGCM) Decode(b []byte, v any) error {
	plain, err := a.Open(nil, nil, b, nil)
	if err != nil {
		return err // a miss, which is replaced
	}
	return a.Codec.Decode(plain, v)
}

// A change of the codec needs no new Version: every loader can read JSON, whatever codec it writes.
// Here values are encrypted from this release on.
func ExampleCodec() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	load := func(context.Context, int64) (Book, error) { return Book{1, "Emma"}, nil }
	ctx := context.Background()

	before, _ := cacheaside.New(rdb, patient) // a process of the previous release
	defer before.Close()
	asJSON, _ := cacheaside.NewLoader(before, "book", load, nil)
	asJSON.Get(ctx, 1)

	after, _ := cacheaside.New(rdb, patient) // a process of this release
	defer after.Close()
	block, _ := aes.NewCipher([]byte("from where your secrets are kept"))
	aead, _ := cipher.NewGCMWithRandomNonce(block)
	encrypted, _ := cacheaside.NewLoader(after, "book", load, &cacheaside.LoaderOptions{
		Codec: aesGCM{cacheaside.JSON, aead}, // or msgpack.Codec, alone or in the place of JSON
	})
	fmt.Println(encrypted.Get(ctx, 1))
	encrypted.Refresh(ctx, 1)
	entry, _ := rdb.Get(ctx, "cacheaside:book:1:{1}").Result()
	fmt.Println(encrypted.Stats().RedisHits, encrypted.Stats().Undecodable, strings.Contains(entry, "Emma"))
	// Output:
	// {1 Emma} <nil>
	// 1 0 false
}

// A load that panics returns an error to its own callers only.
func ExamplePanicError() {
	cache := local()
	defer cache.Close()
	lengths, _ := cacheaside.NewLoader(cache, "length", func(_ context.Context, id int) (int, error) {
		return []int{3, 1}[id], nil
	}, nil)
	_, err := lengths.Get(context.Background(), 7)
	if p, ok := errors.AsType[*cacheaside.PanicError](err); ok {
		fmt.Println(p.Value)
	}
	fmt.Println(lengths.Get(context.Background(), 0))
	// Output:
	// runtime error: index out of range [7] with length 2
	// 3 <nil>
}
