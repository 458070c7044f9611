package consistency

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sys/unix"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// One process of a history: it reads and writes a few rows at random, and keeps a diary of what it
// did and saw.

func init() { testenv.RegisterChild("history", historyChild) }

const (
	historyRows    = 10
	historyStrict  = 6                      // of them are written by Strict and WriteThrough, the others by Outbox
	historyReaders = 3                      // per process, next to a writer
	historyLease   = 500 * time.Millisecond // so the life of a hold
)

// historyConfig configures a process of the history.
type historyConfig struct {
	Redis   string // the address of its own proxy
	DSN     string // by a proxy, too
	Diary   string // a file
	Patient bool   // its time-outs are those of a process that is to come to an end
	Process int    // no two of a run have the same, nor those that take the place of others
	Seed    uint64
}

// diaryLine records one step of a process. A write has three lines, so that a killed process leaves
// a trace of how far it came: "begin", "wrote" when the rows were changed but not committed, and
// "end".
type diaryLine struct {
	What    string
	ID      string        `json:",omitempty"` // of the write, which is its value
	At      int64         `json:",omitempty"`
	Rows    []writtenRow  `json:",omitempty"` // wrote
	Outcome outcome       `json:",omitempty"` // end
	Read    *historyRead  `json:",omitempty"`
	Stats   *historyStats `json:",omitempty"` // the last line
}

// outcome is the known result of a write that has ended.
type outcome string

const (
	wasDone    outcome = "done"    // committed, and the caches are invalidated
	wasQueued  outcome = "queued"  // committed, and the caches will be invalidated
	wasUnknown outcome = "unknown" // no process knows
	wasUndone  outcome = "undone"  // not committed
)

// writtenRow is a row that a write has changed: what it found, and so on what it builds.
type writtenRow struct {
	Row     int
	Version int64 // as changed, one more than before
	Before  string
}

// historyRead is one read and its result.
type historyRead struct {
	Loader string
	Row    int
	Seen   registerRow
	Own    bool // loaded by this process while the read was under way: so Redis may not have confirmed it
	Call   int64
	Return int64
}

type historyStats struct {
	Cache  cacheaside.Stats
	Writer Stats
	Failed int64 // reads that have returned an error
}

// registerRow is a row, and what the caches keep of it.
type registerRow struct {
	Value   string
	Version int64
	Process int   `db:"-"` // that has loaded it
	Loaded  int64 `db:"-"` // and when it had
}

// monotonic is a clock that all processes of the machine share, and that is never set back.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// historian is the process.
type historian struct {
	historyConfig
	diary  *os.File
	db     *sqlx.DB
	rdb    *redis.Client
	cache  *cacheaside.Cache
	writer *Writer
	single *cacheaside.Loader[int, registerRow] // with a memory tier
	many   *cacheaside.Loader[int, registerRow] // without
	failed atomic.Int64

	mu      sync.Mutex
	trouble func()
	where   string
}

// historyPlaces are where a writer may be slow, or its process stopped.
var historyPlaces = []string{"held", "begun", "written", "admitted", "outbox-written", "touched-held", "checked",
	"committed", "stored", "invalidated", "released"}

// plan has something happen in one of a few writes, at one of the places.
func (h *historian) plan(r *rand.Rand) {
	d := time.Duration(r.Int64N(int64(3 * historyLease)))
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.where = historyPlaces[r.IntN(len(historyPlaces))]; r.IntN(8) {
	case 0:
		h.trouble = func() { stopFor(d) }
	case 1:
		h.trouble = func() { time.Sleep(d / 3) }
	default:
		h.trouble = nil
	}
}

func (h *historian) at(place string) {
	h.mu.Lock()
	f := h.trouble
	if place != h.where {
		f = nil
	} else {
		h.trouble = nil
	}
	h.mu.Unlock()
	if f != nil {
		f()
	}
}

// stopFor stops this process.
func stopFor(d time.Duration) {
	resume := exec.Command("sh", "-c", fmt.Sprintf("sleep %.3f; kill -CONT %d", d.Seconds(), os.Getpid()))
	must(resume.Start())
	must(unix.Kill(os.Getpid(), unix.SIGSTOP))
	must(resume.Wait())
}

func historyChild() {
	h := &historian{}
	must(json.Unmarshal([]byte(os.Getenv("HISTORY")), &h.historyConfig))
	var err error
	h.diary, err = os.OpenFile(h.Diary, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(err)
	must(h.open())
	point = h.at
	slog.SetDefault(slog.New(slog.DiscardHandler)) // of the Relay, which says what is broken here on purpose
	for row := range historyRows {
		h.single.Get(context.Background(), row) // so that all is connected
	}
	fmt.Println("ready")
	told := bufio.NewScanner(os.Stdin)
	told.Scan() // to begin
	var over atomic.Bool
	go func() {
		told.Scan()
		over.Store(true)
	}()
	var all sync.WaitGroup
	for i := range historyReaders + 1 {
		r := rand.New(rand.NewPCG(h.Seed, uint64(h.Process*100+i)))
		work := h.read
		if i == 0 {
			work = h.write
		}
		all.Go(func() {
			for n := 0; !over.Load(); n++ {
				work(r, fmt.Sprintf("%d-%d", h.Process, n))
			}
		})
	}
	all.Wait()
	h.note(diaryLine{What: "stats", Stats: &historyStats{h.cache.Stats(), h.writer.Stats(), h.failed.Load()}})
	h.close()
	fmt.Println("done")
}

func (h *historian) close() {
	must(h.writer.Close())
	h.cache.Close()
	h.rdb.Close()
	h.db.Close()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// note writes a line with one system call: what is written is there, also if the process is killed.
func (h *historian) note(l diaryLine) {
	text, err := json.Marshal(l)
	must(err)
	_, err = h.diary.Write(append(text, '\n'))
	must(err)
}

func (h *historian) open() error {
	var err error
	if h.db, err = testenv.OpenDSN(h.DSN); err != nil {
		return err
	}
	h.rdb = redis.NewClient(&redis.Options{Addr: h.Redis, ContextTimeoutEnabled: true, PoolSize: 32,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	settings := &cacheaside.Options{StrictWrites: true, LeaseTTL: historyLease, RedisTimeout: historyLease / 2,
		MaxStaleness: time.Second}
	o := cacheaside.LoaderOptions{TTL: time.Second, Jitter: 0.5, ErrorTTL: 10 * time.Millisecond,
		LoadTimeout: 2 * time.Second, BreakAt: -1}
	relay := &RelayOptions{ClaimFor: time.Second}
	if h.Patient {
		settings.LeaseTTL, settings.RedisTimeout, o.LoadTimeout, relay = long, testenv.Hang, testenv.Hang, nil
	}
	h.cache, err = cacheaside.New(h.rdb, settings)
	if err != nil {
		return err
	}
	if h.single, err = cacheaside.NewLoader(h.cache, "single", h.load, &o); err != nil {
		return err
	}
	o.MemoryTTL = -1
	if h.many, err = cacheaside.NewBatchLoader(h.cache, "many", h.loadMany, &o); err != nil {
		return err
	}
	outbox, err := NewTestOutbox(h.db, "", "")
	if err != nil {
		return err
	}
	h.writer, err = NewWriter(h.db, h.cache, &Options{Queue: outbox, OnQueued: noteQueued, Relay: relay})
	return err
}

// load reads what is committed, and then takes a while, so that often something comes in between.
func (h *historian) load(ctx context.Context, row int) (registerRow, error) {
	rows, err := h.loadMany(ctx, []int{row})
	if err == nil && len(rows) == 0 {
		err = cacheaside.ErrNotFound
	}
	return rows[row], err
}

func (h *historian) loadMany(ctx context.Context, rows []int) (map[int]registerRow, error) {
	query, args, err := sqlx.In("SELECT id, value, version FROM registers WHERE id IN (?)", rows)
	if err != nil {
		return nil, err
	}
	var found []struct {
		ID int
		registerRow
	}
	if err := h.db.SelectContext(ctx, &found, h.db.Rebind(query), args...); err != nil {
		return nil, err
	}
	time.Sleep(rand.N(2 * time.Millisecond))
	all := make(map[int]registerRow, len(found))
	for _, f := range found {
		f.Process, f.Loaded = h.Process, monotonic()
		all[f.ID] = f.registerRow
	}
	return all, nil
}

// read does one thing that a reader does.
func (h *historian) read(r *rand.Rand, _ string) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	if r.IntN(20) == 0 {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(r.Int64N(int64(5*time.Millisecond))))
	}
	defer cancel()
	row, call := r.IntN(historyRows), monotonic()
	var found map[int]registerRow
	var err error
	loader := "many"
	switch p := r.IntN(100); {
	case p < 45:
		loader = "single"
		found = map[int]registerRow{}
		found[row], err = h.single.Get(ctx, row, cacheaside.Fresh)
	case p < 60:
		found = map[int]registerRow{}
		found[row], err = h.many.Get(ctx, row)
	case p < 80:
		found, err = h.many.GetMany(ctx, r.Perm(historyRows)[:2+r.IntN(historyRows-1)])
	case p < 98: // of memory: only so that it is there
		_, err = h.single.Get(ctx, row)
		loader = ""
	default:
		err = h.cache.InvalidateKeys(ctx, h.keys(row)...)
		loader = ""
	}
	at := monotonic()
	if err != nil {
		h.failed.Add(1)
	}
	for row, seen := range found {
		if _, many := errors.AsType[*cacheaside.BatchError[int]](err); loader != "" && (err == nil || many) {
			h.note(diaryLine{What: "read", Read: &historyRead{loader, row, seen, seen.Process == h.Process &&
				seen.Loaded >= call, call, at}})
		}
	}
	time.Sleep(time.Duration(r.Int64N(int64(6 * time.Millisecond))))
}

func (h *historian) keys(row int) []cacheaside.Key {
	return []cacheaside.Key{h.single.Key(row), h.many.Key(row)}
}

var errRollBack = errors.New("it is to be rolled back")

type queuedMark struct{}

func noteQueued(ctx context.Context, _ []cacheaside.Key, _ error) {
	ctx.Value(queuedMark{}).(*atomic.Bool).Store(true)
}

// write does one write, of one row or two, which ends in one of many ways.
func (h *historian) write(r *rand.Rand, id string) {
	time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
	var isQueued atomic.Bool
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), queuedMark{}, &isQueued), 5*time.Second)
	if r.IntN(8) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Int64N(int64(30*time.Millisecond))))
	}
	defer cancel()
	level, rows := Strict, r.Perm(historyStrict)
	if r.IntN(3) == 0 {
		level, rows = Outbox, r.Perm(historyRows-historyStrict)
		for i := range rows {
			rows[i] += historyStrict
		}
	}
	rows = rows[:1+r.IntN(4)/3]
	slices.Sort(rows) // lock rows in one order, to avoid deadlocks
	ending := r.IntN(20)
	var versions []writtenRow
	change := func(ctx context.Context, tx *sqlx.Tx) (err error) {
		if versions, err = h.change(ctx, tx, id, rows); err != nil {
			return err
		}
		switch ending {
		case 0:
			return errRollBack
		case 1:
			panic(errRollBack)
		}
		h.note(diaryLine{What: "wrote", ID: id, Rows: versions, At: monotonic()})
		return nil
	}
	h.plan(r)
	h.note(diaryLine{What: "begin", ID: id, At: monotonic()})
	var err error
	if r.IntN(3) == 0 && level == Strict {
		also := []cacheaside.Key{h.many.Key(rows[0])}
		for _, row := range rows[1:] {
			also = append(also, h.keys(row)...)
		}
		err = quietly(func() error {
			return WriteThrough(ctx, h.writer, h.single, rows[0],
				func(ctx context.Context, tx *sqlx.Tx) (registerRow, error) {
					if err := change(ctx, tx); err != nil {
						return registerRow{}, err
					}
					return registerRow{Value: id, Version: versions[0].Version, Process: -1}, nil
				}, also...)
		})
	} else {
		given := h.keys(rows[0])
		err = quietly(func() error {
			return h.writer.At(level).Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
				for _, row := range rows[1:] { // found out only here
					if err := Touch(ctx, h.keys(row)...); err != nil {
						return err
					}
				}
				return change(ctx, tx)
			}, given...)
		})
	}
	end := diaryLine{What: "end", ID: id, Outcome: wasDone, At: monotonic()}
	switch {
	case errors.Is(err, ErrUnknown):
		end.Outcome = wasUnknown
	case errors.Is(err, ErrQueued), errors.Is(err, ErrNotQueued), err == nil && isQueued.Load():
		end.Outcome = wasQueued
	case err != nil:
		end.Outcome = wasUndone
	}
	h.note(end)
}

// quietly makes an error of the panic that a write has asked for.
func quietly(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil && p != any(errRollBack) {
			panic(p)
		} else if p != nil {
			err = errRollBack
		}
	}()
	return f()
}

// change gives the rows the value id, and the next version.
func (h *historian) change(ctx context.Context, tx *sqlx.Tx, id string, rows []int) (all []writtenRow, err error) {
	for _, row := range rows {
		var before registerRow
		if err := tx.GetContext(ctx, &before, tx.Rebind("SELECT value, version FROM registers WHERE id = ? FOR UPDATE"),
			row); err != nil {
			return nil, err
		}
		w := writtenRow{Row: row, Version: before.Version + 1, Before: before.Value}
		if err := execOn(ctx, tx, "UPDATE registers SET value = ?, version = ? WHERE id = ?", id, w.Version,
			row); err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// historyDSN is that of the test's database, by way of a proxy. A lock is waited for no longer than
// a stopped process keeps it.
func historyDSN(dsn, from, address string) string {
	if strings.HasPrefix(dsn, "postgres://") {
		return strings.Replace(dsn, from, address, 1) + "&connect_timeout=1&lock_timeout=4000"
	}
	c, err := mysql.ParseDSN(dsn)
	must(err)
	c.Addr = address
	c.Timeout, c.ReadTimeout, c.WriteTimeout = time.Second, 5*time.Second, time.Second
	c.Params = map[string]string{"innodb_lock_wait_timeout": "4"}
	return c.FormatDSN()
}
