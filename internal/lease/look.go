package lease

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// FirstLook is how many bytes of what a key holds are read at first: by GETRANGE, not by GET, so
// that what is long keeps neither Redis nor those who wait for what goes the same way. An empty
// string is as good as none.
const FirstLook = 64 << 10

var lookFrom, lookTo any = "0", strconv.Itoa(FirstLook - 1)

func looks(ctx context.Context, keys []string) []redis.Cmder {
	cmds := make([]redis.Cmder, len(keys))
	for i, key := range keys {
		cmds[i] = redis.NewStringCmd(ctx, "getrange", key, lookFrom, lookTo)
	}
	return cmds
}

// state puts into s what the reply to a first look shows.
func state(cmd *redis.StringCmd, s *State) error {
	switch err := cmd.Err(); {
	case err == nil:
		if b, _ := cmd.Bytes(); len(b) > 0 {
			decodeInto(s, b)
			s.Long = len(b) >= FirstLook
		}
		return nil
	case errors.Is(err, redis.Nil):
		return nil
	default:
		return err
	}
}

// Sizes is how long entries of one kind are as a rule: by that is decided how many are read in one
// trip. The zero value knows nothing yet.
type Sizes struct{ mean atomic.Int64 }

const (
	unknownSize = 8 << 10
	smallest    = 64      // what a key and its reply take, however short
	tripBytes   = 1 << 20 // that replies of one trip have together, about
	shareBytes  = FirstLook
	fewKeys     = 16 // are read in one trip whatever they hold, and with others
	manyKeys    = 4096
)

func (z *Sizes) each() int64 {
	if z == nil || z.mean.Load() == 0 {
		return unknownSize
	}
	return max(z.mean.Load(), smallest)
}

// seen takes the length of an entry into account: an exponential moving average, where a lost
// update is no harm.
func (z *Sizes) seen(n int) {
	if z == nil {
		return
	}
	old := z.mean.Load()
	if old == 0 {
		old = int64(n)
	}
	if next := old + (int64(n)-old)/16; next != z.mean.Load() {
		z.mean.Store(max(next, 1))
	}
}

// doubt is called when entries were too long to be read in one trip.
func (z *Sizes) doubt() {
	if z != nil {
		z.mean.Store(min(4*z.each(), FirstLook))
	}
}

// atOnce is how many keys go in one trip.
func (z *Sizes) atOnce() int { return int(min(max(tripBytes/z.each(), fewKeys), manyKeys)) }

// share tells whether the replies for n keys are so short together that they can go with others.
func (z *Sizes) share(n int) bool { return n <= fewKeys || int64(n)*z.each() <= shareBytes }

// share reads keys in a trip that may be shared with others; by first for a caller who must be able
// to leave.
func (s *Store) share(ctx context.Context, first bool, sizes *Sizes, keys []string) ([]redis.Cmder, conn.Sent) {
	weight := int64(len(keys)) * sizes.each()
	if first {
		return s.reads.first(ctx, keys, weight)
	}
	return s.reads.again(ctx, keys, weight)
}

// readAll reads keys: few in one trip; many in parts, each of which fits into its time, and does
// not hold up those who read little.
func (s *Store) readAll(ctx context.Context, first bool, sizes *Sizes, keys []string, found func(i int, s *State, err error)) {
	if sizes.share(len(keys)) && len(keys) <= manyKeys {
		cmds, sent := s.share(ctx, first, sizes, keys)
		if !tell(cmds, sent, sizes, found) && len(keys) > fewKeys && ctx.Err() == nil {
			sizes.doubt()
		}
		return
	}
	p := parted{Store: s, sizes: sizes, first: first, most: manyKeys}
	p.rest = make([]int, len(keys))
	for i := range p.rest {
		p.rest[i] = i
	}
	for len(p.rest) > 0 {
		p.next(ctx, keys, found)
	}
}

// tell calls found for each of the keys that were read, and answers whether all were answered.
func tell(cmds []redis.Cmder, sent conn.Sent, sizes *Sizes, found func(i int, s *State, err error)) bool {
	var s State
	all := true
	for i, cmd := range cmds {
		err := sent.Err(i)
		if s = (State{}); err == nil { // else it must not be read
			err = state(cmd.(*redis.StringCmd), &s)
		}
		if s.Kind == Stored {
			sizes.seen(len(s.Raw))
		}
		all = all && !unanswered(err)
		found(i, &s, err)
	}
	return all
}

func unanswered(err error) bool { return err != nil && !conn.IsReply(err) }

// parted is a read of many keys. These, and what calls found, are not among its fields: there they
// would be allocated also for the read of one key.
type parted struct {
	*Store
	sizes *Sizes
	first bool
	rest  []int // of the keys
	most  int   // at once
	lost  [conn.Ranges]error
}

// next reads one part. Where one of more than a few keys is not answered in time, that may be due
// to their size: its keys are asked for again, fewer at once. Where few are not, Redis is in
// trouble, there: the others of that range are not asked for.
func (p *parted) next(ctx context.Context, keys []string, found func(i int, s *State, err error)) {
	n := min(len(p.rest), p.sizes.atOnce(), p.most)
	part := make([]int, 0, n)
	var names []string
	for _, i := range p.rest[:n] {
		if err := p.lost[p.conn.Range(keys[i])]; err != nil {
			found(i, &State{}, err)
			continue
		}
		part, names = append(part, i), append(names, keys[i])
	}
	p.rest = p.rest[n:]
	if len(part) == 0 {
		return
	}
	var cmds []redis.Cmder
	var sent conn.Sent
	if len(part) > fewKeys {
		cmds = looks(ctx, names)
		sent = p.large(ctx, p.reads.wait/2, cmds) // so that nobody waits for longer than half as long again
	} else {
		cmds, sent = p.share(ctx, p.first, p.sizes, names)
	}
	var again []int
	tell(cmds, sent, p.sizes, func(j int, s *State, err error) {
		i := part[j]
		switch {
		case unanswered(err) && len(part) > fewKeys && ctx.Err() == nil:
			again = append(again, i)
			return
		case unanswered(err):
			p.lost[p.conn.Range(keys[i])] = err
		}
		found(i, s, err)
	})
	if len(again) == 0 {
		p.most = min(2*p.most, manyKeys)
		return
	}
	p.sizes.doubt()
	p.most = max(len(part)/8, fewKeys)
	p.rest = append(again, p.rest...)
}

// lanes is how many trips with many bytes are under way at once: those with few share their
// connections and their way to Redis.
const lanes = 4

// large sends commands whose replies are many bytes, when it is their turn. That there is none in
// time says nothing of Redis.
func (s *Store) large(ctx context.Context, wait time.Duration, cmds []redis.Cmder) conn.Sent {
	select {
	case s.lanes <- struct{}{}:
	default:
		select {
		case s.lanes <- struct{}{}:
		case <-ctx.Done():
			return conn.NotSent(ctx.Err())
		}
		if err := s.conn.Down(s.conn.Range(cmds[0].Args()[1].(string))); err != nil { // meanwhile
			<-s.lanes
			return conn.NotSent(err)
		}
	}
	defer func() { <-s.lanes }()
	var sent conn.Sent
	err := s.conn.Await(ctx, func(ctx context.Context) {
		bound, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		sent = s.conn.AskLong(ctx, bound, cmds)
	})
	if err != nil {
		return conn.NotSent(err)
	}
	return sent
}
