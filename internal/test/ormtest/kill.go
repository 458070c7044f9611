package ormtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A Write makes one write of its choice through an object mapper. It may fail.
type Write func(ctx context.Context, r *rand.Rand) error

const (
	redisVariable, dsnVariable = "ORMTEST_REDIS", "ORMTEST_DSN"
	writers                    = 4 // goroutines of a child
	living                     = 2 // children at the same time
)

// RegisterWriter registers the child process of Kill. prepare returns its writes.
func RegisterWriter(prepare func(w *World) (Write, error)) {
	testenv.RegisterChild("orm-writer", func() {
		db, err := testenv.OpenDSN(os.Getenv(dsnVariable))
		if err != nil {
			panic(err)
		}
		client := redis.NewClient(&redis.Options{Addr: os.Getenv(redisVariable), ContextTimeoutEnabled: true})
		w, err := Open(db, client, consistency.DefaultLevel)
		if err != nil {
			panic(err)
		}
		write, err := prepare(w)
		if err != nil {
			panic(err)
		}
		// On a slow machine the first write takes long. The process is killed after it.
		r := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
		for write(context.Background(), r) != nil {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("ready")
		var all sync.WaitGroup
		for range writers {
			all.Go(func() {
				r := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
				for {
					if write(context.Background(), r) != nil {
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		all.Wait()
	})
}

// Kill kills processes that write, at any moment, while others read. When a Relay has done what is
// in the outbox, no cached value may differ from the database.
func Kill(t *testing.T, e testenv.Engine) {
	kills := testenv.AtSize(20, 500)
	d := testenv.DatabaseOf(t, e)
	server := testenv.StartRedis(t)
	w := Start(t, sqlx.NewDb(d.DB(t), d.Driver), Client(t, server), consistency.DefaultLevel)
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	for range 2 {
		reading.Go(func() {
			for ctx.Err() == nil {
				w.Read(ctx)
			}
		})
	}
	var all sync.WaitGroup
	for n := range living {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 0))
			for range kills / living {
				killOne(t, d.DSN(t), server.Addr, time.Duration(r.Int64N(int64(100*time.Millisecond))))
			}
		})
	}
	all.Wait()
	stop()
	reading.Wait()
	left := w.Depth(t)
	w.Read(t.Context())
	w.Relay(t)
	var rows int
	if err := w.DB.Get(&rows, "SELECT COUNT(*) FROM items"); err != nil {
		t.Fatal(err)
	}
	stale := w.Stale(t.Context())
	t.Logf("%d writers killed; they left %d items in the outbox and %d rows; stale: %d keys", kills, left, rows,
		len(stale))
	for _, s := range stale {
		t.Error(s)
	}
	if rows == 0 || left == 0 {
		t.Error("nothing was written, or nothing was left to the Relay: this has shown nothing")
	}
}

// killOne starts a process that writes, and kills it after some time.
func killOne(t *testing.T, dsn, redis string, after time.Duration) {
	scope := &scope{TB: t}
	defer scope.end()
	child := testenv.SpawnChild(scope, "orm-writer", dsnVariable+"="+dsn, redisVariable+"="+redis)
	if line, err := child.ReadLine(testenv.Hang); err != nil || line != "ready" {
		t.Errorf("a writer says %q, %v", line, err)
		return
	}
	time.Sleep(after)
	child.Kill()
	_ = child.Wait()
}

// A scope is a part of a test, with its own end.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}
