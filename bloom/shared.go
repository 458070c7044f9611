package bloom

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// sharing is how a Local tells others with the same name what is added to it, and hears of what is
// added to theirs.
type sharing struct {
	l      *Local
	name   string
	key    string
	conn   *conn.Conn
	bus    *invalidation.Bus
	start  time.Time     // of the clock that trust is on
	trust  atomic.Int64  // until when all that was announced before the last poll has been added, or the copy was dropped
	asking chan struct{} // one asks for the last number at a time; see upToDate
	asked  time.Time     // when one did, if what was announced then has not come yet; guarded by asking
}

// NewShared makes a Local for a set that several processes add to: each has all bits in its own
// memory, and what is added to one is announced by Redis, by which the others add it to theirs.
// Redis keeps nothing of the filter but the number of the last announcement. name is that of the
// set: letters, digits, "_", "." and "-". rdb is a *redis.Client or a *redis.ClusterClient; it
// stays the caller's, to be closed after the filter. NewShared does no I/O, nor does the filter
// until it is used. nil options are the defaults.
//
// Each process must build its own, from the source: Rebuild, or Maintain. It begins to read when it
// hears what others add, and fails if it cannot. Capacity and rate are each process's own.
//
// A lookup never misses a key that this process has added, once Add has returned nil, nor one that
// another has added if it begins more than Options.MaxStaleness later, as a rule some milliseconds.
// Where that is not certain, since Redis is out of reach, say, the filter answers "maybe"; it says
// "no" again as soon as it is certain that nothing was missed meanwhile. If something was missed,
// it answers "maybe" until it has been rebuilt: Maintain does so by itself. A failover of Redis
// that loses announcements which it has acknowledged, while this process is not connected, shows
// nowhere: Rebuild then.
//
// Compared with a Replica, Redis holds no bits, and loses none; but each process reads the whole
// table when it starts, and whenever it has missed something.
func NewShared(rdb redis.UniversalClient, name string, capacity uint64, rate float64, options *Options) (*Local, error) {
	l, err := NewLocal(capacity, rate, options)
	if err == nil {
		l.shared, err = newSharing(l, rdb, name)
	}
	if err != nil {
		return nil, fmt.Errorf("bloom: shared filter %q: %w", name, err)
	}
	return l, nil
}

func newSharing(l *Local, rdb redis.UniversalClient, name string) (*sharing, error) {
	switch {
	case !keys.ValidName(name):
		return nil, errors.New("only letters, digits, '_', '.' and '-' in a name")
	case rdb == nil:
		return nil, errors.New("the Redis client is nil")
	}
	home, err := conn.NewHome(rdb, tries*l.options.Timeout)
	if err != nil {
		return nil, err
	}
	s := &sharing{l: l, name: name, key: l.options.Prefix + "::bloom:{" + name + "}:shared", conn: home, start: time.Now(), asking: make(chan struct{}, 1)}
	s.bus = invalidation.New(home, s.key, l.options.MaxStaleness, s)
	home.Watch(l.options.Prefix, l.options.Timeout)
	return s, nil
}

func (s *sharing) close() {
	s.bus.Close()
	s.trust.Store(0)
	s.conn.Close()
}

// trust is read before the copy, and that before its bits: then all that had been announced when
// the poll was sent which the trust is from is in these bits, or the copy has been dropped. A trust
// that is read later may be that of a poll which has seen a key that was added after its bits were
// read.
func (l *Local) trust() int64 {
	if l.shared == nil {
		return 0
	}
	l.shared.bus.Listen() // nothing, if it has begun
	return l.shared.trust.Load()
}

// trusts tells whether what the copy lacks was certainly not added. The clock is read last, and
// now: a process that was suspended does not know what was announced meanwhile.
func (l *Local) trusts(trust int64) bool {
	return l.shared == nil || int64(time.Since(l.shared.start)) < trust
}

// tell announces keys that were added here.
func (s *sharing) tell(ctx context.Context, hashes []hash) error {
	nothing := func(ctx context.Context, name string) redis.Cmder { return redis.NewIntCmd(ctx, "strlen", name) } // which users of filters are permitted
	if err := s.bus.Tell(ctx, s.key, announcements(hashes), nothing); err != nil {
		return s.l.wrap(err)
	}
	return nil
}

// errDeaf ends a rebuild that cannot begin.
var errDeaf = errors.New("other processes' additions do not arrive: no subscription, or no answer to a poll")

// hear waits until what others announce is heard.
func (s *sharing) hear(ctx context.Context) error {
	s.bus.Listen()
	ctx, cancel := context.WithTimeoutCause(ctx, max(s.conn.Timeout(), s.l.options.MaxStaleness), errDeaf)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.l.trusts(s.trust.Load()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Told adds keys that others have added.
func (s *sharing) Told(body []byte) {
	var hashes []hash
	decodeHashes(body, func(h *hash) { hashes = append(hashes, *h) })
	s.l.write(hashes, nil)
}

// Void drops the copy, for it lacks what was missed, and what a rebuild has begun: that may
// have read the table before.
func (s *sharing) Void(int) {
	dropped := s.l.change(func(h *holding) bool {
		if h.active == nil && h.building == nil {
			return false
		}
		h.active, h.building = nil, nil
		return true
	})
	if !dropped {
		return // as at the start
	}
	s.l.wake()
}

// Clear is for a mere doubt: nothing was announced that was not heard, as a poll has told since.
func (s *sharing) Clear(int) {}

// Trust has it say "no" until then. Told and Void come before the Trust that counts on them.
func (s *sharing) Trust(_ int, until time.Time) {
	if until.IsZero() {
		s.trust.Store(0)
		return
	}
	if s.trust.Swap(int64(until.Sub(s.start))) == 0 && s.l.holds.Load().active == nil {
		s.l.wake()
	}
}

// Forget is for keys that are invalidated, which no filter announces.
func (s *sharing) Forget(uint64) {}
