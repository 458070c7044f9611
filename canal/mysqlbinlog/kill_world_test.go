package mysqlbinlog

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// playWorld configures a process of a play (play_test.go).
type playWorld struct {
	Redis, Addr, DSN, Schema string

	Checkpoint string // "sql", "sqlite:" and a file, or a file
	Lock       string // "redis", "mysql", or none
	LockTTL    time.Duration
	ServerID   uint32
	Saves      time.Duration // SaveEvery
	Memory     bool          // a memory tier
	// of a reader between two rounds, three quarters of it of a writer between two writes: linger
	Rest time.Duration
}

// linger sleeps for a random time between one and three times r.
func linger(r time.Duration) { time.Sleep(r + rand.N(2*r)) }

const playStaleness = 500 * time.Millisecond // MaxStaleness

// playTables are those that are written.
var playTables = []string{"people", "visits"}

// playProcess holds the parts that every process of a play shares.
type playProcess struct {
	playWorld
	*sourcetest.Process
}

func (w playWorld) open() (*playProcess, error) {
	memory := int64(-1)
	if w.Memory {
		memory = 0
	}
	p, err := sourcetest.Open("mysql", w.DSN+"&timeout=1m&readTimeout=1m", w.Redis,
		&cacheaside.Options{MemoryBytes: memory, MaxStaleness: playStaleness}, w.Schema, playTables...)
	return &playProcess{w, p}, err
}

func (p *playProcess) checkpoint() (canal.Checkpoint, error) {
	file, sqlite := strings.CutPrefix(p.Checkpoint, "sqlite:")
	switch {
	case p.Checkpoint == "sql":
		return canal.NewSQLCheckpoint(p.DB, nil)
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
		return lock.NewRedis(p.Process.Redis, &lock.Options{TTL: p.LockTTL})
	case "mysql":
		return mysqllock.New(p.DB.DB, &mysqllock.Options{Options: lock.Options{TTL: p.LockTTL}})
	}
	return nil, nil
}

// consumer is a Consumer of both tables. logger gets its alerts.
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
	c, err := canal.NewConsumer(p.Cache, source, r, p.Bindings(),
		&canal.Options{Locker: locker, SaveEvery: p.Saves, Logger: logger})
	return c, r, err
}

// ofPlay returns the parts of a child process.
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
