package canal_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// recorded is a Source that delivers these changes once. Real programs use mysqlbinlog.New or
// envelope.NewSource.
type recorded []event.Change

func (r recorded) Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error {
	position := event.Position("0")
	if need.From == "" { // otherwise they were delivered before
		position = "1"
	}
	for _, b := range []event.Batch{{Position: "0"}, {Changes: r, Position: position, Time: time.Now()}} {
		select {
		case deliver <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// row is one of the table users.
func row(id, name string) event.Row {
	r, err := event.NewRow(event.NewColumns("id", "name"), []event.Value{event.TextValue(id), event.TextValue(name)})
	if err != nil {
		log.Fatal(err)
	}
	return r
}

// consume runs a Consumer until the given number of changes is done.
func consume(c *canal.Consumer, changes int64) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	for c.Stats().Changes < changes {
		time.Sleep(time.Millisecond)
	}
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

// An UPDATE by another program ends what is cached of its row.
func ExampleNewConsumer() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// usually nil; this timeout is for a machine that is busy with tests
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: 10 * time.Second})
	defer cache.Close()
	name := "Ada" // of a table
	names, err := cacheaside.NewLoader(cache, "name",
		func(context.Context, int64) (string, error) { return name, nil }, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	fmt.Println(names.Get(ctx, 42))

	name = "Grace"
	source := recorded{{Schema: "shop", Table: "users", Kind: event.Update, Before: row("42", "Ada"),
		After: row("42", "Grace")}}
	folder, err := os.MkdirTemp("", "canal")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	consumer, err := canal.NewConsumer(cache, source, canal.NewFileCheckpoint(filepath.Join(folder, "position")),
		[]canal.Binding{
			canal.Bind(names, "shop", "users", canal.IntColumn[int64]("id")),
		}, &canal.Options{
			OnAlert: func(a canal.Alert) { log.Print("page somebody: ", a.Kind, a.Err) },
		})
	if err != nil {
		log.Fatal(err)
	}
	consume(consumer, 1)
	fmt.Println(names.Get(ctx, 42))
	// Output:
	// Ada <nil>
	// Grace <nil>
}

// A row moves to another category. The pages of both categories are loaded again.
func ExampleBindGroup() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// usually nil; this timeout is for a machine that is busy with tests
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: 10 * time.Second})
	defer cache.Close()
	products := map[string]string{"books": "Faust", "toys": ""} // of a table
	pages, err := cacheaside.NewLoader(cache, "pages", func(_ context.Context, category string) (string,
		error) {
		return products[category], nil
	}, &cacheaside.LoaderOptions{
		Groups: cacheaside.GroupsOf(func(category, _ string) []string { return []string{"category:" + category} }),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	show := func() {
		books, _ := pages.Get(ctx, "books")
		toys, _ := pages.Get(ctx, "toys")
		fmt.Printf("books %q, toys %q\n", books, toys)
	}
	show()

	products = map[string]string{"books": "", "toys": "Faust"}
	// id, name
	source := recorded{{Schema: "shop", Table: "products", Kind: event.Update, Before: row("42", "books"),
		After: row("42", "toys")}}
	consumer, err := canal.NewConsumer(cache, source, nil, []canal.Binding{
		canal.BindGroup(pages, "shop", "products", canal.Text("name", "category:%s")),
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	consume(consumer, 1)
	show()
	// Output:
	// books "Faust", toys ""
	// books "", toys "Faust"
}

// A handler updates a search index after the caches were invalidated.
func ExampleHandle() {
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	folder, err := os.MkdirTemp("", "canal")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	source := recorded{
		{Schema: "shop", Table: "users", Kind: event.Insert, After: row("43", "Alan")},
		{Schema: "shop", Table: "users", Kind: event.Delete, Before: row("42", "Grace")},
	}
	index := func(_ context.Context, c event.Change) error {
		switch c.Kind {
		case event.Insert, event.Update, event.Read:
			fmt.Println("index", c.After.Get("id").Text(), c.After.Get("name").Text())
		case event.Delete:
			fmt.Println("remove", c.Before.Get("id").Text())
		default:
			fmt.Println("index the whole table anew") // after TRUNCATE, ALTER, or what could not be read
		}
		return nil
	}
	consumer, err := canal.NewConsumer(cache, source, canal.NewFileCheckpoint(filepath.Join(folder, "position")),
		[]canal.Binding{
			canal.Handle("search", "shop", "users", index),
		}, &canal.Options{Parking: parking.NewFile(filepath.Join(folder, "parked"))}) // for what it does not take
	if err != nil {
		log.Fatal(err)
	}
	consume(consumer, 2)
	// Output:
	// index 43 Alan
	// remove 42
}

// A filter that learns of rows which others insert.
func ExampleBindFilter() {
	cache, _ := cacheaside.NewLocal(nil)
	defer cache.Close()
	folder, err := os.MkdirTemp("", "canal")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	ctx := context.Background()
	filter, err := bloom.NewLocal(1000, 0.001)
	if err != nil {
		log.Fatal(err)
	}
	rebuild := func(ctx context.Context) error {
		// as a rule bloom.Table
		_, err := filter.Rebuild(ctx, bloom.Keys("42"), &bloom.RebuildOptions{AllowFewer: true})
		return err
	}
	source := recorded{{Schema: "shop", Table: "users", Kind: event.Insert, After: row("43", "Alan")}}
	consumer, err := canal.NewConsumer(cache, source, canal.NewFileCheckpoint(filepath.Join(folder, "position")),
		[]canal.Binding{
			canal.BindFilter("users", filter, "shop", "users", canal.TextColumn[string]("id")),
		}, &canal.Options{
			Parking: parking.NewFile(filepath.Join(folder, "parked")),
			OnGap:   rebuild, // at the first start, and when changes were missed
		})
	if err != nil {
		log.Fatal(err)
	}
	consume(consumer, 1)
	fmt.Println(filter.MightContain(ctx, "43"))
	fmt.Println(filter.MightContain(ctx, "7"))
	// Output:
	// true <nil>
	// false <nil>
}

// A key that is made of several columns, or otherwise than as the database shows it.
func ExampleMapping() {
	byName := canal.Mapping[string]{
		Columns: []string{"id", "name"},
		Key: func(r event.Row) (key string, ok bool, err error) {
			name := r.Get("name")
			if !name.Known() {
				return "", false, event.ErrUnknownColumn // the whole loader is invalidated
			}
			if name.IsNull() {
				return "", false, nil // such a row is not found by its name
			}
			return name.Text() + "#" + r.Get("id").Text(), true, nil
		},
	}
	fmt.Println(byName.Key(row("42", "Ada")))
	// Output: Ada#42 true <nil>
}

// Of several Consumers that may take over from each other, the position is best in a database; its
// table is made by a migration.
func ExampleNewSQLCheckpoint() {
	db := sqlx.MustOpen("sqlite", "file:checkpoint?mode=memory&cache=shared")
	defer db.Close()
	checkpoint, err := canal.NewSQLCheckpoint(db, &canal.SQLCheckpointOptions{Name: "search"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := checkpoint.CreateTable(ctx); err != nil { // as a rule a migration, of checkpoint.Schema()
		log.Fatal(err)
	}
	if err := checkpoint.Save(ctx, "binlog.000007:4711", 2); err != nil { // a Consumer does that
		log.Fatal(err)
	}
	fmt.Println(checkpoint.Load(ctx))
	fmt.Println(checkpoint.Save(ctx, "binlog.000007:815", 1) != nil) // one that has lost its lock since
	// Output:
	// binlog.000007:4711 <nil>
	// true
}
