package lease

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A Filling is an entry to be stored in place of the lease or claim of an attempt.
type Filling struct {
	*Attempt
	Entry  Entry
	Life   time.Duration
	Stored bool // the result. If false and Err is nil, the lease or claim was lost: it was invalidated, or has expired
}

// fillBytes is the approximate maximum number of bytes of the entries that one trip stores. An
// entry that is longer has its own trip.
const fillBytes = 1 << 20

// Fill stores entries. The stamp of each is the token of its attempt. The caller renews the leases
// until Fill returns, because many long entries take several trips.
func (s *Store) Fill(ctx context.Context, fs []*Filling) {
	attempts := make([]*Attempt, len(fs))
	for i, f := range fs {
		f.Entry.Stamp = f.token
		attempts[i], f.filling = f.Attempt, f
	}
	for part := range chunksOf(attempts, len(attempts), fillBytes) {
		s.fillPart(ctx, part)
	}
	for _, f := range fs {
		f.filling = nil // the attempts of a batch share their memory
	}
}

// chunksOf divides attempts into consecutive parts of at most n, with entries of at most maxBytes
// together. An attempt whose entry is longer is a part of its own.
func chunksOf(attempts []*Attempt, n, maxBytes int) iter.Seq[[]*Attempt] {
	return func(yield func([]*Attempt) bool) {
		for len(attempts) > 0 {
			count, total := 0, 0
			for ; count < min(n, len(attempts)); count++ {
				if total += attempts[count].entrySize(); count > 0 && total > maxBytes {
					break
				}
			}
			if !yield(attempts[:count]) {
				return
			}
			attempts = attempts[count:]
		}
	}
}

// entrySize returns the number of bytes of the entry that Fill stores for an attempt. It is 0
// during all other steps.
func (a *Attempt) entrySize() int {
	if a.filling == nil {
		return 0
	}
	return a.filling.size()
}

func (s *Store) fillPart(ctx context.Context, attempts []*Attempt) {
	attempts, sends := s.fillByCompare(ctx, attempts)
	for ; sends < maxSends && len(attempts) > 0; sends++ { // a repeated fill recognises its own entry
		var large, small []*Attempt
		for _, a := range attempts {
			if a.entrySize() > maxScriptBytes {
				large = append(large, a)
			} else {
				small = append(small, a)
			}
		}
		refused, lost := s.fillByRename(ctx, large)
		attempts = slices.Concat(lost, s.fillByScript(ctx, append(small, refused...)))
	}
}

// fillByScript stores entries with fillScript. It returns the attempts whose replies were lost.
func (s *Store) fillByScript(ctx context.Context, attempts []*Attempt) (lost []*Attempt) {
	if len(attempts) == 0 {
		return nil
	}
	script := fillLeasesScript
	if slices.ContainsFunc(attempts, func(a *Attempt) bool { return a.owns == ownsClaim }) {
		script = fillScript
	}
	s.evalAll(ctx, attempts, scriptCall{Script: script, args: func(to []any, a *Attempt) []any {
		b := a.filling.entry()
		return append(to, b[tokenAt:expiryAt], b, a.filling.Life.Milliseconds()) // the stamp is the token
	}, reply: func(a *Attempt, v any, err error) {
		switch {
		case err == nil:
			a.filling.finish(v)
			return
		case !conn.IsReply(err):
			lost = append(lost, a)
		}
		a.Err = err
	}})
	return lost
}

// fillByCompare stores entries in place of leases by SET with IFEQ, which costs Redis less than a
// script. Valkey 8.1 and Redis 8.4 have it. It returns the attempts that need fillScript:
//
//   - all attempts, if the server does not know IFEQ. The first fills of a Store find that out with
//     one attempt each, so that few bytes are sent in vain;
//   - those with a claim, because the bytes of a claimed entry are not known;
//   - those whose key did not hold the lease. The client may have repeated the command after a lost
//     reply, and then the key holds the entry of the attempt, which only the script recognises;
//   - those whose replies were lost. Then sends is 1, because the command counts for maxSends: Fill
//     returns in time, although the others get one send less.
func (s *Store) fillByCompare(ctx context.Context, attempts []*Attempt) (others []*Attempt, sends int) {
	known := s.compares.Load()
	if known == no {
		return attempts, 0
	}
	var leases []*Attempt
	for _, a := range attempts {
		if a.owns == ownsLease && (known == yes || len(leases) == 0) {
			leases = append(leases, a)
		} else {
			others = append(others, a)
		}
	}
	cmds := make([]*redis.Cmd, len(leases))
	for i, a := range leases {
		f := a.filling
		cmds[i] = redis.NewCmd(ctx, "set", a.key, f.entry(), "ifeq", appendLease(nil, a.token), "px",
			f.Life.Milliseconds())
	}
	s.send(ctx, cmds, &s.changes, func(i int, _ any, err error) {
		switch {
		case err == nil:
			s.compares.Store(yes)
			leases[i].filling.finish(int64(1))
			return
		case !conn.IsReply(err):
			sends = 1
		case redis.HasErrorPrefix(err, "syntax error"):
			s.compares.Store(no)
		}
		others = append(others, leases[i])
	})
	return others, sends
}

// size returns the maximum length of the bytes of the entry.
func (f *Filling) size() int {
	return headerSize + groupsHead + len(f.Entry.Groups) + len(f.Entry.Key) + len(f.Entry.Payload)
}

// entry returns the bytes of the entry.
func (f *Filling) entry() []byte { return appendEntry(make([]byte, 0, f.size()), f.Entry) }

// finish records the reply of fillScript: whether Redis has stored the entry, or the attempt had
// lost its lease or claim.
func (f *Filling) finish(reply any) {
	f.Stored, f.Err, f.Awaited = reply != int64(0), nil, reply == int64(2)
	f.owns, f.header, f.expiry = ownsNothing, nil, ""
}
