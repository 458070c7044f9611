package lease

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// state puts into s what the reply to a first look shows.
func state(cmd *redis.StringCmd, s *State) error {
	switch err := cmd.Err(); {
	case err == nil:
		if b, _ := cmd.Bytes(); len(b) > 0 {
			*s = Decode(b)
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
	smallest    = 64 // what a key and its reply take, however short
	shareBytes  = FirstLook
	fewKeys     = 16 // are read in one trip whatever they hold, and with others
	manyKeys    = 4096
)

func (s *Sizes) each() int64 {
	mean := s.mean.Load()
	if mean == 0 {
		return unknownSize
	}
	return max(mean, smallest)
}

// seen takes the length of an entry into account: an exponential moving average, where a lost
// update is no harm.
func (s *Sizes) seen(n int) {
	old := s.mean.Load()
	if old == 0 {
		old = int64(n)
	}
	if next := old + (int64(n)-old)/16; next != s.mean.Load() {
		s.mean.Store(max(next, 1))
	}
}

// atOnce is how many keys go in one trip.
func (s *Sizes) atOnce() int { return int(min(max(tripBytes/s.each(), fewKeys), manyKeys)) }

// share tells whether the replies for n keys are so short together that they can go with others.
func (s *Sizes) share(n int) bool { return n <= fewKeys || int64(n)*s.each() <= shareBytes }

// First reads keys for a caller that may want to leave, on its own goroutine: it returns when ctx
// ends, and not much later. It calls found for each. An entry may be only the beginning of what the
// key holds: State.Long. sizes is how long such entries are.
func (s *Store) First(ctx context.Context, sizes *Sizes, keys []string, found func(i int, held *State, err error)) {
	s.readAll(ctx, true, sizes, keys, found)
}

// Read reads keys, as First does, for a caller that need not leave before the store's time-outs.
func (s *Store) Read(ctx context.Context, sizes *Sizes, keys []string, found func(i int, held *State, err error)) {
	s.readAll(ctx, false, sizes, keys, found)
}

// share reads keys in a trip that may be shared with others; by first for a caller who must be able
// to leave.
func (s *Store) share(ctx context.Context, first bool, sizes *Sizes, keys []string) ([]redis.Cmder, conn.Sent) {
	weight := int64(len(keys)) * sizes.each()
	if first {
		return s.reads.first(ctx, keys, weight)
	}
	cmds := looks(ctx, keys)
	return cmds, s.reads.flight(ctx, weight, cmds)
}

// readAll reads keys: few in one trip; many in parts, each of which fits into its time, and does
// not hold up those who read little.
func (s *Store) readAll(ctx context.Context, first bool, sizes *Sizes, keys []string, found func(i int, s *State, err error)) {
	if sizes.share(len(keys)) && len(keys) <= manyKeys {
		cmds, sent := s.share(ctx, first, sizes, keys)
		if !tell(cmds, sent, sizes, found) && len(keys) > fewKeys && ctx.Err() == nil {
			sizes.mean.Store(min(4*sizes.each(), FirstLook)) // they were too long to be read in one trip
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
	p.most = max(len(part)/8, fewKeys)
	p.rest = append(again, p.rest...)
}

// chunk is how much of a long entry is read in one trip: little, so that others' replies come
// between, and the time-out is one for progress.
const chunk = 256 << 10

// maxFetches is how often a long entry is read from its beginning, where it has changed meanwhile.
const maxFetches = 3

var errChanging = errors.New("a long entry changed during each attempt to read it")

// Fetch reads all of what a key holds of which the first look has shown the beginning. Content
// longer than most bytes is not read: it is Unknown, and Raw its beginning.
//
// Each part is read with the header behind it, whose stamp is another as soon as the entry is: so
// the parts are of one entry. A claim changes the header, too: then it is read again.
func (s *Store) Fetch(ctx context.Context, key string, look []byte, most int) (State, error) {
	for range maxFetches {
		f := fetch{store: s, key: key, most: most, parts: [][]byte{look}, n: len(look)}
		if len(look) == 0 {
			f.parts = nil
		}
		changed, err := f.run(ctx)
		switch {
		case err != nil:
			return State{}, err
		case !changed:
			return f.state(), nil
		}
		look = nil
	}
	return State{}, errChanging
}

// fetch is one try to read a long entry.
type fetch struct {
	store *Store
	key   string
	most  int
	parts [][]byte
	n     int // bytes of parts
	long  bool
}

func (f *fetch) run(ctx context.Context) (changed bool, err error) {
	for first := true; ; first = false {
		part := redis.NewStringCmd(ctx, "getrange", f.key, f.n, f.n+chunk-1)
		header := redis.NewStringCmd(ctx, "getrange", f.key, 0, headerSize-1)
		cmds := []redis.Cmder{part, header}
		if first { // is there anything beyond?
			cmds = append(cmds, redis.NewStringCmd(ctx, "getrange", f.key, f.most, f.most))
		}
		sent := f.store.large(ctx, f.store.conn.Timeout(), cmds)
		for i, cmd := range cmds {
			if err := sent.Err(i); err != nil {
				return false, err
			}
			if err := cmd.Err(); err != nil {
				return false, err
			}
		}
		b, _ := part.Bytes()
		if len(b) > 0 {
			f.parts, f.n = append(f.parts, b), f.n+len(b)
		}
		if now, _ := header.Bytes(); !bytes.Equal(now, f.header()) {
			return true, nil
		}
		if f.long = first && cmds[2].(*redis.StringCmd).Val() != ""; f.long || len(b) < chunk {
			return false, nil
		}
	}
}

func (f *fetch) header() []byte {
	if f.n == 0 {
		return nil
	}
	return f.parts[0][:min(headerSize, len(f.parts[0]))]
}

func (f *fetch) state() (s State) {
	switch {
	case f.n == 0:
		return State{}
	case f.long:
		return State{Kind: Unknown, Long: true, Raw: f.parts[0]}
	}
	whole := make([]byte, 0, f.n)
	for _, part := range f.parts {
		whole = append(whole, part...)
	}
	return Decode(whole)
}
