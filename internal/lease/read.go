package lease

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// state decodes the reply to a GETRANGE of the first FirstRead bytes into s.
func state(cmd *redis.StringCmd, s *State) error {
	switch err := cmd.Err(); {
	case err == nil:
		if b, _ := cmd.Bytes(); len(b) > 0 {
			*s = Decode(b)
			s.Long = len(b) >= FirstRead
		}
		return nil
	case errors.Is(err, redis.Nil):
		return nil
	default:
		return err
	}
}

// Sizes estimates the length of the entries of one loader. It determines how many of them are
// read in one trip. The zero value is ready for use.
type Sizes struct{ mean atomic.Int64 }

const (
	unknownSize = 8 << 10   // the assumed size until an entry was read
	minSize     = 64        // the minimum size of a key and its reply
	shareBytes  = FirstRead // the maximum size of the replies to one reader in a shared trip
	fewKeys     = 16        // this many keys are always read in one trip, which may be shared
	manyKeys    = 4096      // the maximum number of keys in one trip
)

// perKey returns the estimated size of the reply for one key, in bytes.
func (s *Sizes) perKey() int64 {
	mean := s.mean.Load()
	if mean == 0 {
		return unknownSize
	}
	return max(mean, minSize)
}

// Observe updates the exponential moving average with the length of an entry, of which a lookup
// returns FirstRead bytes at most. A lost concurrent update does no harm.
func (s *Sizes) Observe(n int) {
	n = min(n, FirstRead)
	old := s.mean.Load()
	if old == 0 {
		old = int64(n)
	}
	if next := old + (int64(n)-old)/16; next != s.mean.Load() {
		s.mean.Store(max(next, 1))
	}
}

// perTrip returns the maximum number of keys in one trip.
func (s *Sizes) perTrip() int { return int(min(max(tripBytes/s.perKey(), fewKeys), manyKeys)) }

// Total returns the estimated size of the replies for n keys, in bytes.
func (s *Sizes) Total(n int) int64 { return int64(n) * s.perKey() }

// FitShared reports whether the replies for n keys are short enough to share a trip with others.
func (s *Sizes) FitShared(n int) bool { return n <= fewKeys || s.Total(n) <= shareBytes }

// First reads keys, on the caller's goroutine if possible, for a caller that may want to leave:
// it returns soon after ctx ends. It calls found for each key. An entry may be only the beginning
// of what the key holds: see State.Long. sizes estimates the length of the entries.
func (s *Store) First(ctx context.Context, sizes *Sizes, keys []string, found func(i int, held *State, err error)) {
	s.readAll(ctx, true, sizes, keys, found)
}

// Read reads keys as First does, for a caller that need not leave before the timeout of the
// store.
func (s *Store) Read(ctx context.Context, sizes *Sizes, keys []string, found func(i int, held *State, err error)) {
	s.readAll(ctx, false, sizes, keys, found)
}

// readShared reads keys in a trip that may be shared with other readers. first is true for a
// caller that must be able to leave.
func (s *Store) readShared(ctx context.Context, first bool, sizes *Sizes, keys []string) ([]redis.Cmder, conn.Sent) {
	weight := sizes.Total(len(keys))
	cmds := readCommands(ctx, keys)
	b := s.reads.forCommands(cmds)
	if first {
		return b.readKeys(ctx, keys, weight, cmds)
	}
	return cmds, b.sendFlight(ctx, weight, cmds)
}

// readAll reads a few keys in one trip. It reads many keys in parts, so that each part arrives
// within its timeout, and does not delay other readers.
func (s *Store) readAll(
	ctx context.Context, first bool, sizes *Sizes, keys []string, found func(i int, s *State, err error),
) {
	if sizes.FitShared(len(keys)) && len(keys) <= manyKeys {
		cmds, sent := s.readShared(ctx, first, sizes, keys)
		if !report(cmds, sent, sizes, found) && len(keys) > fewKeys && ctx.Err() == nil {
			sizes.mean.Store(min(4*sizes.perKey(), FirstRead)) // probably the entries are longer than estimated
		}
		return
	}
	p := partedRead{Store: s, sizes: sizes, first: first, maxKeys: manyKeys}
	p.remaining = make([]int, len(keys))
	for i := range p.remaining {
		p.remaining[i] = i
	}
	for len(p.remaining) > 0 {
		p.next(ctx, keys, found)
	}
}

// report calls found for each command. It returns false if Redis did not reply to one of them.
func report(cmds []redis.Cmder, sent conn.Sent, sizes *Sizes, found func(i int, s *State, err error)) bool {
	var s State
	all := true
	for i, cmd := range cmds {
		err := sent.Err(i)
		if s = (State{}); err == nil { // otherwise the command must not be read
			err = state(cmd.(*redis.StringCmd), &s)
		}
		if s.Kind == Stored {
			sizes.Observe(len(s.Raw))
		}
		all = all && !noReply(err)
		found(i, &s, err)
	}
	return all
}

// noReply reports whether err is an error other than a reply of Redis.
func noReply(err error) bool { return err != nil && !conn.IsReply(err) }

// A partedRead reads many keys in parts. The keys and the callback are not among its fields,
// because they would then be allocated for the read of a single key too.
type partedRead struct {
	*Store
	sizes     *Sizes
	first     bool
	remaining []int              // indexes of keys
	maxKeys   int                // of the next part
	failed    [conn.Ranges]error // the error that the remaining keys of a range get
}

// next reads one part. If Redis does not reply in time for some of many keys, their size may be
// the reason: they are read again, in smaller parts. If it does not reply for one of a few keys,
// Redis has failed for that range, and the other keys of the range get the same error.
func (p *partedRead) next(ctx context.Context, keys []string, found func(i int, s *State, err error)) {
	n := min(len(p.remaining), p.sizes.perTrip(), p.maxKeys)
	part := make([]int, 0, n)
	var names []string
	for _, i := range p.remaining[:n] {
		if err := p.failed[p.conn.Range(keys[i])]; err != nil {
			found(i, &State{}, err)
			continue
		}
		part, names = append(part, i), append(names, keys[i])
	}
	p.remaining = p.remaining[n:]
	if len(part) == 0 {
		return
	}
	var cmds []redis.Cmder
	var sent conn.Sent
	if len(part) > fewKeys {
		cmds = readCommands(ctx, names)
		// half a timeout: with a second attempt, in smaller parts, it is one and a half at most
		sent = p.sendLarge(ctx, p.reads.one.wait/2, cmds)
	} else {
		cmds, sent = p.readShared(ctx, p.first, p.sizes, names)
	}
	var again []int
	report(cmds, sent, p.sizes, func(j int, s *State, err error) {
		i := part[j]
		switch {
		case noReply(err) && len(part) > fewKeys && ctx.Err() == nil:
			again = append(again, i)
			return
		case noReply(err):
			p.failed[p.conn.Range(keys[i])] = err
		}
		found(i, s, err)
	})
	if len(again) == 0 {
		p.maxKeys = min(2*p.maxKeys, manyKeys)
		return
	}
	p.maxKeys = max(len(part)/8, fewKeys)
	p.remaining = append(again, p.remaining...)
}

// chunk is how many bytes of a long entry are read in one trip. It is small, so that other
// replies can pass in between, and so that the timeout applies to the progress of the read.
const chunk = 256 << 10

// maxFetches is how many times a long entry is read from its beginning because it has changed
// during the read.
const maxFetches = 3

var errChanging = errors.New("a long entry changed during each attempt to read it")

// Fetch reads the whole content of a key. head is its beginning, which was read before. Content
// longer than limit bytes is not read: its Kind is Unknown, and Raw is its beginning.
//
// The header is read again together with each part. It contains the stamp, which changes with the
// entry, so all parts belong to one entry. A claim changes the header as well; then the entry is
// read from its beginning again.
func (s *Store) Fetch(ctx context.Context, key string, head []byte, limit int) (State, error) {
	for range maxFetches {
		f := fetch{store: s, key: key, limit: limit, parts: [][]byte{head}, n: len(head)}
		if len(head) == 0 {
			f.parts = nil
		}
		changed, err := f.run(ctx)
		switch {
		case err != nil:
			return State{}, err
		case !changed:
			return f.state(), nil
		}
		head = nil
	}
	return State{}, errChanging
}

// A fetch is one attempt to read a long entry.
type fetch struct {
	store *Store
	key   string
	limit int
	parts [][]byte
	n     int  // total length of parts
	long  bool // the content is longer than limit
}

func (f *fetch) run(ctx context.Context) (changed bool, err error) {
	for first := true; ; first = false {
		part := redis.NewStringCmd(ctx, "getrange", f.key, f.n, f.n+chunk-1)
		header := redis.NewStringCmd(ctx, "getrange", f.key, 0, headerSize-1)
		cmds := []redis.Cmder{part, header}
		if first { // is the content longer than limit?
			cmds = append(cmds, redis.NewStringCmd(ctx, "getrange", f.key, f.limit, f.limit))
		}
		sent := f.store.sendLarge(ctx, f.store.conn.Timeout(), cmds)
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
