package watermillqueue_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() { testenv.RegisterChild("writer", writer) }

const topic = "invalidations"

// side holds the parts of each process: a cache of the rows, and a Writer whose queue is in NATS.
type side struct {
	users  *cacheaside.Loader[int, int]
	writer *consistency.Writer
}

func newSide(t testing.TB, redisAddr, natsURL, dbFile string, options consistency.Options) *side {
	t.Helper()
	db, err := sqlx.Open("sqlite",
		"file:"+dbFile+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	check(t, err)
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true,
		ReadTimeout: 100 * time.Millisecond, DialTimeout: 100 * time.Millisecond, MaxRetries: -1})
	cache, err := cacheaside.New(rdb, nil)
	check(t, err)
	users, err := cacheaside.NewLoader(cache, "user", func(ctx context.Context, id int) (value int, err error) {
		return value, db.GetContext(ctx, &value, "SELECT value FROM users WHERE id = ?", id)
	}, &cacheaside.LoaderOptions{TTL: time.Hour})
	check(t, err)
	options.Queue = open(t, natsPublisher(t, natsURL), push(t, natsURL, topic), topic, 1)
	options.Level = consistency.Inline
	w, err := consistency.NewWriter(db, cache, &options)
	check(t, err)
	t.Cleanup(func() {
		w.Close()
		cache.Close()
		rdb.Close()
		db.Close()
	})
	return &side{users, w}
}

func (s *side) write(id, value int) error {
	return s.writer.Update(context.Background(), func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET value = ? WHERE id = ?", value, id)
		return err
	}, s.users.Key(id))
}

// writer writes the rows named on its stdin, until it is killed, and prints each write whose caches
// are, or will be, invalidated.
func writer() {
	t := &fatal{}
	s := newSide(t, os.Getenv("REDIS"), os.Getenv("NATS"), os.Getenv("DB"), consistency.Options{})
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var id, value int
		fmt.Sscan(in.Text(), &id, &value)
		if err := s.write(id, value); err != nil {
			fmt.Println("failed", id, err)
			continue
		}
		fmt.Println("written", id, value)
	}
}

// fatal is for what helps tests, in a child.
type fatal struct{ testing.TB }

func (*fatal) Helper()        {}
func (*fatal) Cleanup(func()) {}
func (*fatal) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

// Redis is out. Processes write, queue what they cannot invalidate, try it, and put it back, and
// are killed in between; so is NATS. When Redis is there again, another process does what is left:
// nothing stays stale.
func TestKilled(t *testing.T) {
	lives := 3
	if text := os.Getenv("CACHEASIDE_KILLS"); text != "" {
		var err error
		lives, err = strconv.Atoi(text)
		check(t, err)
	}
	const perLife = 10
	store, server := testenv.StartRedis(t), testenv.StartNATS(t)
	file := t.TempDir() + "/db"
	db, err := sqlx.Open("sqlite", "file:"+file)
	check(t, err)
	defer db.Close()
	rows := lives * perLife
	db.MustExec("CREATE TABLE users (id INTEGER PRIMARY KEY, value INTEGER)")
	for id := range rows {
		db.MustExec("INSERT INTO users VALUES (?, 0)", id)
	}
	self := newSide(t, store.Addr, server.URL, file, consistency.Options{NoRelay: true})
	for id := range rows {
		_, err := self.users.Get(t.Context(), id)
		check(t, err)
	}
	store.Pause() // it keeps what is cached
	env := []string{"REDIS=" + store.Addr, "NATS=" + server.URL, "DB=" + file}
	var written []int
	for life := range lives {
		c := testenv.SpawnChild(t, "writer", env...)
		die := rand.IntN(perLife + 1) // after how many writes it is killed
		for id := life * perLife; id < (life+1)*perLife; id++ {
			fmt.Fprintln(c.Stdin, id, 1)
		}
		for range die {
			line, err := c.ReadLine(testenv.Hang)
			check(t, err)
			var id, value int
			if _, err := fmt.Sscanf(line, "written %d %d", &id, &value); err != nil {
				t.Fatalf("%q: it is to be queued", line)
			}
			written = append(written, id)
		}
		time.Sleep(rand.N(300 * time.Millisecond)) // time for its relay to try
		c.Kill()
		if life%2 == 1 {
			server.Restart(t)
		}
	}
	store.Resume()
	relay := newSide(t, store.Addr, server.URL, file, consistency.Options{})
	stale := written
	for deadline := time.Now().Add(2 * testenv.Hang); len(stale) > 0 &&
		time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var still []int
		for _, id := range stale {
			if value, err := relay.users.Get(t.Context(), id); err != nil || value != 1 {
				still = append(still, id)
			}
		}
		stale = still
	}
	if len(stale) > 0 {
		t.Errorf("%d of %d writes are stale: %v", len(stale), len(written), stale)
	}
	t.Logf("%d writes, %d processes killed, %d stale", len(written), lives, len(stale))
}
