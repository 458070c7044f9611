package redlock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// Scripts, for tests that disturb one kind of request.
var (
	Acquire = acquireScript
	Token   = tokenScript
	Release = releaseScript
	// The script of redsync.
	Extend = conn.Script{
		Hash: "d75bb8b5bd13532ddedd17762e772346e39b321e", Source: "redis.call(\"PEXPIRE\", KEYS[1], ARGV[2])",
	}
)

// NewDriver returns the driver of New.
func NewDriver(clients []*redis.Client, o *lock.Options) (driver.Driver, error) {
	return newNodes(clients, o)
}

// Watched is the driver of a Locker. It shows its rounds to a test.
type Watched struct {
	*nodes
	last atomic.Pointer[round]
}

// NewWatched is New with access to the rounds.
func NewWatched(clients []*redis.Client, o *lock.Options) (*lock.Locker, *Watched, error) {
	d, err := newNodes(clients, o)
	if err != nil {
		return nil, nil, err
	}
	w := &Watched{nodes: d}
	l, err := lock.New(w, o)
	return l, w, err
}

// Acquire records the round that has acquired the lock.
func (w *Watched) Acquire(ctx context.Context, q driver.Request) (driver.Grant, error) {
	g, err := w.nodes.Acquire(ctx, q)
	if err == nil {
		w.last.Store(g.Lock.(*held).round)
	}
	return g, err
}

// Known reports whether a node received a request for the most recently granted lock, and whether
// the outcome of the request is known.
func (w *Watched) Known(node int) (asked, known bool) {
	b := w.last.Load().ballots[node]
	return b.requested.Load(), b.finished()
}

// ClockBehind sets the known clock of a node to its value before it was set ahead.
func (w *Watched) ClockBehind(node int, by time.Duration) {
	reply, err := redislock.Run(context.Background(), w.all[node].conn, redislock.Time, nil)
	if err != nil {
		panic(err)
	}
	w.all[node].clock.Learn(time.Hour, time.Now(), reply.Now-by.Microseconds())
}

// Round is one round of an Acquire. A test executes its steps one by one.
type Round struct{ r *round }

// NewRound returns a round for a lock with this name and this timeout for requests.
func NewRound(w *Watched, name string, timeout time.Duration) Round {
	key := redislock.Key(w.prefix, name)
	c := &contest{nodes: w.nodes, keys: []string{key, key + ":token"}, ttl: time.Hour, timeout: timeout}
	return Round{c.newRound()}
}

// Vote requests the lock from one node.
func (r Round) Vote(ctx context.Context, node int) (bool, error) { return r.r.ballots[node].vote(ctx) }

// Free asks a node to release the lock.
func (r Round) Free(ctx context.Context, node int) error {
	_, err := r.r.ballots[node].free(ctx)
	return err
}
