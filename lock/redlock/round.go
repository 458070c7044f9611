package redlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// contest is one Acquire. It asks in rounds, each with an id of its own: a node carries out the
// request of a round once at most.
type contest struct {
	d       *nodes
	keys    []string // of the lock and of the token
	ttl     time.Duration
	timeout time.Duration
	token   bool
	given   []any // ids of rounds that were given up: what they may have left is taken over
}

// keepGiven is how many rounds before may still have a vote somewhere.
const keepGiven = 4

// round is one try for the lock, and the lock itself if it succeeds.
type round struct {
	*contest
	id      string
	olds    []any     // contest.given, at the time
	sent    time.Time // before the first request
	ballots []*ballot // by node
}

func (c *contest) newRound() *round {
	r := &round{contest: c, id: rand.Text(), olds: slices.Clone(c.given), sent: time.Now()}
	for _, n := range c.d.all {
		r.ballots = append(r.ballots, &ballot{UniversalClient: n.rdb, r: r, n: n, known: make(chan struct{})})
	}
	return r
}

// mutex returns the mutex of redsync for the lock of this round. redsync sends to all nodes at
// once, by its own pools, and counts the votes. It gives a lock up that has no majority or has come
// too late, extends it by its own script, and stops waiting when the votes of a majority are alike.
// client returns the client of a node that its pool is to send by; see ballot.
func (r *round) mutex(life time.Duration, client func(b *ballot) redis.UniversalClient) *redsync.Mutex {
	pools := make([]redsyncredis.Pool, len(r.ballots))
	for i, b := range r.ballots {
		pools[i] = goredis.NewPool(client(b))
	}
	return redsync.New(pools...).NewMutex(r.keys[0],
		redsync.WithExpiry(life),
		redsync.WithDriftFactor(1./20), // as lock.Locker does
		redsync.WithTimeoutFactor(1),   // each request has a time-out of its own
		redsync.WithFailFast(true),
		redsync.WithValue(r.id),
		redsync.WithGenValueFunc(func() (string, error) { return r.id, nil }),
	)
}

// run asks for the lock, and then has the nodes store its token. After an error it may have left
// votes: see settle.
func (r *round) run(ctx context.Context) (token int64, err error) {
	lock := r.mutex(r.ttl, func(b *ballot) redis.UniversalClient { return b })
	if err := lock.TryLockContext(ctx); err != nil || !r.token {
		return 0, err
	}
	token = r.candidate()
	store := r.mutex(max(time.Until(r.sent.Add(r.ttl)), time.Millisecond), func(b *ballot) redis.UniversalClient { return storing{b, token} })
	if ok, err := store.ExtendContext(ctx); !ok {
		return 0, fmt.Errorf("the token: %w", err)
	}
	return token, nil
}

// candidate returns a token greater than each that was stored on one of the nodes that have voted,
// and at least their time: so it is greater than what they have forgotten.
func (r *round) candidate() int64 {
	token := int64(0)
	for _, b := range r.ballots {
		if b.granted() {
			token = max(token, b.answer.Value+1, b.answer.Now)
		}
	}
	return token
}

// settle makes sure, in the background, that nothing is left of a round that has not got the lock,
// or has released it: also not by requests that may yet be carried out.
func (r *round) settle() {
	for _, b := range r.ballots {
		b.settle()
	}
}
