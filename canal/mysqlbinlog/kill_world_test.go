package mysqlbinlog

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// playWorld is what a process of a play (play_test.go) is told.
type playWorld struct {
	Redis, Addr, DSN, Schema string

	Checkpoint string // "sql", "sqlite:" and a file, or a file
	Lock       string // "redis", "mysql", or none
	LockTTL    time.Duration
	ServerID   uint32
	Saves      time.Duration // SaveEvery
	Memory     bool          // a memory tier
	Rest       time.Duration // of a reader between two rounds, three quarters of it of a writer between two writes: linger
}

// linger sleeps so long, and by chance up to three times as long.
func linger(r time.Duration) { time.Sleep(r + rand.N(2*r)) }

const (
	playStaleness = 500 * time.Millisecond // MaxStaleness
	blockRows     = 20                     // that are written at the same time, and never again
)

// playTables are those that are written; each has a loader by its primary key, and one by e-mail
// address.
var playTables = []string{"people", "visits"}

// playProcess is what each process of a play has.
type playProcess struct {
	playWorld
	db      *sqlx.DB
	rdb     *redis.Client
	cache   *cacheaside.Cache
	byID    []*cacheaside.Loader[int64, string]
	byEmail []*cacheaside.Loader[string, string]
	loads   atomic.Int64
}

func (w playWorld) open() (_ *playProcess, err error) {
	p := &playProcess{playWorld: w}
	if p.db, err = sqlx.Open("mysql", w.DSN+"&timeout=1m&readTimeout=1m"); err != nil {
		return nil, err
	}
	p.db.SetMaxOpenConns(8)
	p.db.SetMaxIdleConns(8)
	p.rdb = redis.NewClient(&redis.Options{Addr: w.Redis, ContextTimeoutEnabled: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	memory := int64(-1)
	if w.Memory {
		memory = 0
	}
	if p.cache, err = cacheaside.New(p.rdb, &cacheaside.Options{MemoryBytes: memory, MaxStaleness: playStaleness}); err != nil {
		return nil, err
	}
	o := &cacheaside.LoaderOptions{TTL: time.Hour, NullTTL: time.Hour, MemoryTTL: time.Hour, Jitter: -1, EarlyRefresh: -1, StaleFor: -1, BreakAt: -1, ErrorTTL: 50 * time.Millisecond} // nothing heals by itself
	for _, table := range playTables {
		id, err := cacheaside.NewBatchLoader(p.cache, table+"-by-id", playLoad[int64](p, "SELECT id, CONCAT(email, ' ', n) FROM "+table+" WHERE id IN (?)"), o)
		if err != nil {
			return nil, err
		}
		email, err := cacheaside.NewBatchLoader(p.cache, table+"-by-email", playLoad[string](p, "SELECT email, CONCAT(id, ' ', n) FROM "+table+" WHERE email IN (?)"), o)
		if err != nil {
			return nil, err
		}
		p.byID, p.byEmail = append(p.byID, id), append(p.byEmail, email)
	}
	return p, nil
}

func (p *playProcess) close() {
	p.cache.Close()
	p.rdb.Close()
	p.db.Close()
}

func playLoad[K comparable](p *playProcess, query string) func(context.Context, []K) (map[K]string, error) {
	return func(ctx context.Context, keys []K) (map[K]string, error) {
		p.loads.Add(int64(len(keys)))
		text, args, err := sqlx.In(query, keys)
		if err != nil {
			return nil, err
		}
		rows, err := p.db.QueryContext(ctx, text, args...)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		found := map[K]string{}
		for rows.Next() {
			var key K
			var v sql.NullString
			if err := rows.Scan(&key, &v); err != nil {
				return nil, err
			}
			found[key] = v.String
		}
		return found, rows.Err()
	}
}

// ids and emails are the keys of a block.
func ids(block int) []int64 {
	all := make([]int64, blockRows)
	for i := range all {
		all[i] = int64(block*blockRows + i)
	}
	return all
}

func email(n int64) string { return fmt.Sprintf("m%d@x", n) }

func emails(block int) []string {
	all := make([]string, blockRows)
	for i, id := range ids(block) {
		all[i] = email(id)
	}
	return all
}

// read has the keys of a block cached, there or not.
func (p *playProcess) read(block int) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for i := range playTables {
		_, _ = p.byID[i].GetMany(ctx, ids(block))
		_, _ = p.byEmail[i].GetMany(ctx, emails(block))
	}
}

// check compares all keys of the blocks with the database, when nobody writes any more, and names
// those that are stale.
func (p *playProcess) check(ctx context.Context, blocks int) (stale []string, err error) {
	for i, table := range playTables {
		var rows []struct {
			ID    int64
			Email string
			N     int64
		}
		if err := p.db.SelectContext(ctx, &rows, "SELECT id, email, n FROM "+table); err != nil {
			return nil, err
		}
		byID, byEmail := map[int64]string{}, map[string]string{}
		for _, r := range rows {
			byID[r.ID] = fmt.Sprint(r.Email, " ", r.N)
			byEmail[r.Email] = fmt.Sprint(r.ID, " ", r.N)
		}
		for block := range blocks {
			some, err := compare(ctx, p.byID[i], ids(block), byID)
			if err != nil {
				return nil, err
			}
			more, err := compare(ctx, p.byEmail[i], emails(block), byEmail)
			if err != nil {
				return nil, err
			}
			for _, s := range append(some, more...) {
				stale = append(stale, table+" "+s)
			}
		}
	}
	return stale, nil
}

func compare[K comparable](ctx context.Context, l *cacheaside.Loader[K, string], keys []K, want map[K]string) (stale []string, err error) {
	var got map[K]string
	for began := time.Now(); time.Since(began) < testenv.Hang; { // what could not be loaded in trouble is not loaded at once again
		if got, err = l.GetMany(ctx, keys); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if got[k] != want[k] {
			stale = append(stale, fmt.Sprintf("%v is %q, not %q", k, got[k], want[k]))
		}
	}
	return stale, nil
}

// keyCount is how many keys check looks at.
func keyCount(blocks int) int { return blocks * blockRows * 2 * len(playTables) }

func (p *playProcess) bindings() (all []canal.Binding) {
	for i, table := range playTables {
		all = append(all, canal.Bind(p.byID[i], p.Schema, table, canal.IntColumn[int64]("id")), canal.Bind(p.byEmail[i], p.Schema, table, canal.TextColumn[string]("email")))
	}
	return all
}

func (p *playProcess) checkpoint() (canal.Checkpoint, error) {
	file, sqlite := strings.CutPrefix(p.Checkpoint, "sqlite:")
	switch {
	case p.Checkpoint == "sql":
		return canal.NewSQLCheckpoint(p.db, nil)
	case sqlite:
		db, err := sqlx.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)")
		if err != nil {
			return nil, err
		}
		c, err := canal.NewSQLCheckpoint(db, nil)
		if err != nil {
			return nil, err
		}
		return c, c.CreateTable(context.Background())
	}
	return canal.NewFileCheckpoint(p.Checkpoint), nil
}

// refusals counts what a Checkpoint has refused.
type refusals struct {
	canal.Checkpoint
	n atomic.Int64
}

func (r *refusals) Save(ctx context.Context, p event.Position, token int64) error {
	err := r.Checkpoint.Save(ctx, p, token)
	if errors.Is(err, canal.ErrSuperseded) {
		r.n.Add(1)
	}
	return err
}

func (p *playProcess) locker() (*lock.Locker, error) {
	switch p.Lock {
	case "redis":
		return lock.NewRedis(p.rdb, &lock.LockerOptions{TTL: p.LockTTL})
	case "mysql":
		return mysqllock.New(p.db.DB, &mysqllock.Options{LockerOptions: lock.LockerOptions{TTL: p.LockTTL}})
	}
	return nil, nil
}

// consumer is a Consumer of both tables. logger is told of its alerts.
func (p *playProcess) consumer(logger *slog.Logger) (*canal.Consumer, *refusals, error) {
	source, err := New(Options{Addr: p.Addr, User: "root", ServerID: p.ServerID, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	at, err := p.checkpoint()
	if err != nil {
		return nil, nil, err
	}
	locker, err := p.locker()
	if err != nil {
		return nil, nil, err
	}
	r := &refusals{Checkpoint: at}
	c, err := canal.NewConsumer(p.cache, source, r, p.bindings(), &canal.Options{Locker: locker, SaveEvery: p.Saves, Logger: logger})
	return c, r, err
}

// ofPlay is what a child process has.
func ofPlay() *playProcess {
	var w playWorld
	err := json.Unmarshal([]byte(os.Getenv("PLAY")), &w)
	if err == nil {
		var p *playProcess
		if p, err = w.open(); err == nil {
			return p
		}
	}
	panic(err)
}

func (w playWorld) env() string {
	b, err := json.Marshal(w)
	if err != nil {
		panic(err)
	}
	return "PLAY=" + string(b)
}
