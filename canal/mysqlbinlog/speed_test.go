package mysqlbinlog

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// process holds the parts of one process of a fleet.
type process struct {
	cache *cacheaside.Cache
	users *cacheaside.Loader[int64, string]
	loads atomic.Int64
}

// process makes caches over the table users (id, name), with a filter before it, if that is not
// nil.
func (w *world) process(rdb *redis.Client, filter cacheaside.Filter) *process {
	w.Helper()
	p := &process{cache: w.cache(rdb)}
	var err error
	p.users, err = cacheaside.NewLoader(p.cache, "user", func(ctx context.Context, id int64) (name string, err error) {
		p.loads.Add(1)
		err = w.DB.QueryRowContext(ctx, "SELECT name FROM users WHERE id = ?", id).Scan(&name)
		return name, err
	}, &cacheaside.LoaderOptions{TTL: time.Hour, MemoryTTL: time.Hour, NullTTL: time.Hour, StaleFor: -1,
		EarlyRefresh: -1, Filter: filter})
	w.Check(err)
	return p
}

// cache is one that a Redis which is slow on a busy machine does not keep from asking it.
func (w *world) cache(rdb *redis.Client) *cacheaside.Cache {
	w.Helper()
	c, err := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang})
	w.Check(err)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// consume runs a Consumer of the table users until the test ends.
func (w *world) consume(p *process, checkpoint canal.Checkpoint, o *canal.Options) *canal.Consumer {
	w.Helper()
	c, err := canal.NewConsumer(p.cache, w.source(), checkpoint,
		[]canal.Binding{canal.Bind(p.users, w.Schema, "users", canal.IntColumn[int64]("id"))}, o)
	w.Check(err)
	w.Consume(c)
	return c
}

// An UPDATE that an operator types into the client reaches the memories of two processes.
func TestOperatorsUpdate(t *testing.T) {
	client, err := exec.LookPath("mariadb")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("the mariadb client is not installed: it comes with the package mariadb-server, as `make test` " +
			"installs it")
	}
	x := onMariaDB(t) // whose client is there; what an operator types into MySQL's is no other statement
	rdb := testenv.SharedRedis(t).Client(t)
	a, b := x.process(rdb, nil), x.process(rdb, nil)
	x.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(50))",
		"INSERT INTO users VALUES (1, 'old'), (2, 'other')")
	x.consume(a, canal.NewFileCheckpoint(t.TempDir()+"/position"), nil)
	for _, p := range []*process{a, b} {
		for id, want := range map[int64]string{1: "old", 2: "other"} {
			if got, err := p.users.Get(t.Context(), id); got != want || err != nil {
				t.Fatal(got, err)
			}
		}
	}
	loads := a.loads.Load() + b.loads.Load()
	host, port, _ := net.SplitHostPort(x.server.Addr)
	command := exec.Command(client, "--no-defaults", "--protocol=TCP", "-h", host, "-P", port, "-u", x.server.User,
		x.Schema)
	command.Stdin = strings.NewReader("UPDATE users SET name = 'new' WHERE id = 1;\n")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	for _, p := range []*process{a, b} {
		testenv.Eventually(x, "the new value is served", func() bool {
			got, err := p.users.Get(t.Context(), 1)
			x.Check(err)
			return got == "new"
		})
	}
	if n := a.loads.Load() + b.loads.Load() - loads; n > 1 {
		t.Errorf("%d loads", n)
	}
}
