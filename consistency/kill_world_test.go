package consistency

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// killCase is a way of writing. Each block of rows is written in one of them, by one process, or
// two at the same time, until they are killed. No process writes the block afterwards, so a stale
// key stays stale.
type killCase struct {
	name    string
	level   Level
	through bool // by WriteThrough
	memory  bool // the queue is in memory, so that a kill may leave keys as they were
}

var killCases = []killCase{
	{name: "Inline", level: Inline, memory: true},
	{name: "Outbox", level: Outbox},
	{name: "Strict", level: Strict},
	{name: "WriteThrough", level: Strict, through: true},
	{name: "Async", level: Async},
}

func (k killCase) side() int {
	if k.level == Strict {
		return 1
	}
	return 0
}

// killWorld configures a process of TestNothingIsForgotten.
type killWorld struct {
	Redis string
	DSN   string
	Seed  uint64
	Who   int

	Case   int // of a writer
	Block  int
	Double bool // with a double delete
	Reload bool // Async reloads

	Point string // where a writer or relay kills itself
	Nth   int    // when it passes there so often

	Patient bool // its time-outs are those of a process that is to come to an end

	Memory bool // a reader has a memory tier
	Slow   time.Duration
}

const (
	killRows  = 6  // of a block
	killSpace = 16 // between the first rows of blocks
	killLease = time.Second

	killStaleness = time.Second // of memory tiers
)

// killSide is one of the two fleets of caches, each with its outbox: the fleet whose keys are put
// on hold, and the other one.
type killSide struct {
	cache *cacheaside.Cache
	rows  *cacheaside.Loader[int64, int64] // by id
	sums  *cacheaside.Loader[int64, int64] // by block
	box   TestOutbox
}

// killProcess holds the parts that every process of the test shares.
type killProcess struct {
	killWorld
	db    *sqlx.DB
	rdb   *redis.Client
	sides [2]killSide
	loads atomic.Int64
}

func (k killWorld) open() (_ *killProcess, err error) {
	p := &killProcess{killWorld: k}
	if p.db, err = testenv.OpenDSN(k.DSN); err != nil {
		return nil, err
	}
	p.db.SetMaxOpenConns(6)
	p.db.SetMaxIdleConns(6)
	p.rdb = redis.NewClient(&redis.Options{Addr: k.Redis, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	memory := int64(-1)
	if k.Memory {
		memory = 0
	}
	var timeout time.Duration // that by default
	if k.Patient {
		timeout = testenv.Hang
	}
	for i := range p.sides {
		s, name := &p.sides[i], []string{"plain", "strict"}[i]
		s.cache, err = cacheaside.New(p.rdb, &cacheaside.Options{Prefix: name, MemoryBytes: memory, LeaseTTL: killLease,
			StrictWrites: i == 1, MaxStaleness: killStaleness, RedisTimeout: timeout})
		if err != nil {
			return nil, err
		}
		// nothing heals by itself
		o := &cacheaside.LoaderOptions{TTL: time.Hour, Jitter: -1, EarlyRefresh: -1, MemoryTTL: time.Hour}
		if s.rows, err = cacheaside.NewLoader(s.cache, "row", p.loader("SELECT n FROM kill_row WHERE id = ?"),
			o); err != nil {
			return nil, err
		}
		if s.sums, err = cacheaside.NewLoader(s.cache, "sum", p.loader("SELECT SUM(n) FROM kill_row WHERE block = ?"),
			o); err != nil {
			return nil, err
		}
		if s.box, err = NewTestOutbox(p.db, "kill_outbox_"+name, name); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (k *killProcess) close() {
	for _, s := range k.sides {
		s.cache.Close()
	}
	k.rdb.Close()
	k.db.Close()
}

// loader is slow, if the process is, when it has read.
func (k *killProcess) loader(query string) func(context.Context, int64) (int64, error) {
	query = k.db.Rebind(query)
	return func(ctx context.Context, key int64) (n int64, err error) {
		k.loads.Add(1)
		err = k.db.GetContext(ctx, &n, query, key)
		if k.Slow > 0 {
			time.Sleep(rand.N(k.Slow))
		}
		return n, err
	}
}

func (k *killProcess) side(block int) killSide {
	return k.sides[killCases[block%len(killCases)].side()]
}

// ids are the rows of a block.
func ids(block int) []int64 {
	all := make([]int64, killRows)
	for i := range all {
		all[i] = int64(block*killSpace + i)
	}
	return all
}

// killedWorld is that of a child process.
func killedWorld() *killProcess {
	var w killWorld
	err := json.Unmarshal([]byte(os.Getenv("KILL")), &w)
	if err == nil {
		var p *killProcess
		if p, err = w.open(); err == nil {
			return p
		}
	}
	panic(err)
}

func (k killWorld) env() string {
	b, err := json.Marshal(k)
	if err != nil {
		panic(err)
	}
	return "KILL=" + string(b)
}

// createTables makes the tables with the given number of blocks.
func (k *killProcess) createTables(ctx context.Context, blocks int) error {
	if _, err := k.db.ExecContext(ctx,
		"CREATE TABLE kill_row (id BIGINT PRIMARY KEY, block BIGINT NOT NULL, n BIGINT NOT NULL)"); err != nil {
		return err
	}
	if _, err := k.db.ExecContext(ctx, "CREATE INDEX kill_row_block ON kill_row (block)"); err != nil {
		return err
	}
	for _, s := range k.sides {
		if err := s.box.CreateTable(ctx); err != nil {
			return err
		}
	}
	for block := range blocks {
		text := "INSERT INTO kill_row VALUES "
		for i, id := range ids(block) {
			if i > 0 {
				text += ","
			}
			text += fmt.Sprintf("(%d,%d,0)", id, block)
		}
		if _, err := k.db.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// settled is check; but a memory tier may be late by the time that it is allowed.
func (k *killProcess) settled(ctx context.Context, blocks int) (wrong []staleKey, err error) {
	wrong, err = k.check(ctx, blocks)
	late := slices.ContainsFunc(wrong, func(s staleKey) bool { return !killCases[s.block()%len(killCases)].memory })
	if k.Memory && late && err == nil {
		time.Sleep(killStaleness)
		return k.check(ctx, blocks)
	}
	return wrong, err
}

// staleKey is a key whose cached value differs from the database.
type staleKey struct {
	sum  bool
	key  int64
	got  int64
	want int64
}

func (s staleKey) block() int {
	if s.sum {
		return int(s.key)
	}
	return int(s.key / killSpace)
}

func (s staleKey) String() string {
	if s.sum {
		return fmt.Sprintf("the sum of block %d is %d, not %d", s.key, s.got, s.want)
	}
	return fmt.Sprintf("row %d is %d, not %d", s.key, s.got, s.want)
}

// check reads all keys of the blocks through the caches, when all writers have stopped, and returns
// those that differ from the database.
func (k *killProcess) check(ctx context.Context, blocks int) (wrong []staleKey, err error) {
	var table []struct{ ID, Block, N int64 }
	if err := k.db.SelectContext(ctx, &table, k.db.Rebind("SELECT id, block, n FROM kill_row WHERE block < ?"),
		blocks); err != nil {
		return nil, err
	}
	rows, sums := make(map[int64]int64), make(map[int64]int64)
	for _, r := range table {
		rows[r.ID] = r.N
		sums[r.Block] += r.N
	}
	for block := range blocks {
		s := k.side(block)
		for _, id := range ids(block) {
			got, err := s.rows.Get(ctx, id)
			if err != nil {
				return nil, err
			}
			if got != rows[id] {
				wrong = append(wrong, staleKey{false, id, got, rows[id]})
			}
		}
		got, err := s.sums.Get(ctx, int64(block))
		if err != nil {
			return nil, err
		}
		if got != sums[int64(block)] {
			wrong = append(wrong, staleKey{true, int64(block), got, sums[int64(block)]})
		}
	}
	return wrong, nil
}
