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

// contest is the state of one Acquire. It runs rounds, each with its own id. A node carries out
// the request of a round at most once.
type contest struct {
	nodes     *nodes
	keys      []string // keys of the lock and of the token
	ttl       time.Duration
	timeout   time.Duration
	token     bool
	abandoned []any // ids of failed rounds; the next round takes over their votes
}

// maxAbandoned is the maximum number of earlier rounds whose votes a round takes over.
const maxAbandoned = 4

// round is one try to acquire the lock, and the lock itself if the try succeeds.
type round struct {
	*contest
	id      string
	earlier []any     // contest.abandoned when the round began
	sent    time.Time // before the first request
	ballots []*ballot // one for each node
}

func (c *contest) newRound() *round {
	r := &round{contest: c, id: rand.Text(), earlier: slices.Clone(c.abandoned), sent: time.Now()}
	for _, n := range c.nodes.all {
		r.ballots = append(r.ballots, &ballot{UniversalClient: n.rdb, r: r, n: n, done: make(chan struct{})})
	}
	return r
}

// mutex returns redsync's mutex for the lock of this round. redsync sends to all nodes
// concurrently, with its own pools, and counts the votes. It gives up a lock that has no majority
// or was granted too late, extends a lock with its own script, and stops waiting when the replies
// of a majority agree. client returns the client with which the pool of a node sends; see ballot.
func (r *round) mutex(life time.Duration, client func(b *ballot) redis.UniversalClient) *redsync.Mutex {
	pools := make([]redsyncredis.Pool, len(r.ballots))
	for i, b := range r.ballots {
		pools[i] = goredis.NewPool(client(b))
	}
	return redsync.New(pools...).NewMutex(r.keys[0],
		redsync.WithExpiry(life),
		redsync.WithDriftFactor(1./20), // the same as in lock.Locker
		redsync.WithTimeoutFactor(1),   // ballot limits each request
		redsync.WithFailFast(true),
		redsync.WithValue(r.id),
		redsync.WithGenValueFunc(func() (string, error) { return r.id, nil }),
	)
}

// run requests the lock and then stores its token on the nodes. After an error it may leave
// votes; see cleanUp.
func (r *round) run(ctx context.Context) (token int64, err error) {
	lock := r.mutex(r.ttl, func(b *ballot) redis.UniversalClient { return b })
	if err := lock.TryLockContext(ctx); err != nil || !r.token {
		return 0, err
	}
	token = r.candidate()
	store := r.mutex(max(time.Until(r.sent.Add(r.ttl)), time.Millisecond),
		func(b *ballot) redis.UniversalClient { return storing{b, token} })
	if ok, err := store.ExtendContext(ctx); !ok {
		return 0, fmt.Errorf("the token: %w", err)
	}
	return token, nil
}

// candidate returns a new token. It is greater than each token stored on a node that has voted,
// and at least the time of those nodes, so it is also greater than tokens that they have
// forgotten.
func (r *round) candidate() int64 {
	token := int64(0)
	for _, b := range r.ballots {
		if b.granted() {
			token = max(token, b.reply.Value+1, b.reply.Now)
		}
	}
	return token
}

// cleanUp makes sure, in the background, that the nodes keep nothing of a round that has failed
// or released the lock, and that its delayed requests are not carried out.
func (r *round) cleanUp() {
	for _, b := range r.ballots {
		b.cleanUp()
	}
}
