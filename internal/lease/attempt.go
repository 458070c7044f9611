package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// maxSends is the maximum number of times that a command is sent when its reply is lost.
const maxSends = 2

// An Attempt is the attempt of one process to load one key. Its steps acquire a lease or a claim,
// store the result of the load, or release the lease. These steps are methods of Store that process
// many attempts in one trip. Each step leaves its result in State and Err. An Attempt is used by
// one goroutine at a time.
type Attempt struct {
	State State // the result of the last Take or Claim; after a read, the caller sets it
	Err   error // the error of the last step
	// a recent generation of the key's loader, during which the key may be on hold; 0 if the
	// generation is old
	Young uint64
	// other processes wait for the end of the lease that this attempt owned: announce it
	Awaited bool

	key   string
	life  time.Duration
	stamp []byte // the stamp of the only entry that Claim accepts; empty if it accepts any content

	token  Token
	owns   ownership
	header []byte // the header of the claimed entry before the claim
	expiry string // the hard expiry of that entry before the claim, Unix milliseconds by Redis' clock

	sent []Token // tokens whose replies were lost; each may own a lease or a claim

	filling *Filling // the entry that Fill stores
}

// ownership is the kind of right that an attempt owns, to load its key.
type ownership uint8

const (
	ownsNothing ownership = iota
	ownsLease
	ownsClaim
)

// NewAttempt returns an Attempt for key. Its lease or claim ends after life unless it is renewed.
func NewAttempt(key string, life time.Duration) Attempt { return Attempt{key: key, life: life} }

// For restricts Claim to the entry with this stamp.
func (a *Attempt) For(stamp Token) { a.stamp = stamp[:] }

// tokenArg returns a copy of the token. After a timeout the client may still be sending the
// command with this token, although the attempt has drawn another one.
func (a *Attempt) tokenArg() []byte {
	t := a.token
	return t[:]
}

// Adopt sets found to Mine if it shows a lease that this attempt owns, or has requested without a
// reply. Then the load may begin. Adopt leaves any other state unchanged.
func (a *Attempt) Adopt(found *State) {
	if found.Kind == Busy && (slices.Contains(a.sent, found.Token) || a.owns == ownsLease && a.token == found.Token) {
		a.token, a.owns = found.Token, ownsLease
		*found = State{Kind: Mine}
	}
}

// Claim requests the right to load keys unless another load of them is in progress. After For, it
// accepts only the entry with that stamp. The resulting state is Mine, Busy, Held, or Unknown if
// the key does not hold that entry any more.
func (s *Store) Claim(ctx context.Context, attempts []*Attempt) {
	s.request(ctx, attempts, maxSends, func(attempts []*Attempt, reply replyFunc) {
		s.evalAll(ctx, attempts, scriptCall{Script: claimScript, once: true, args: func(to []any, a *Attempt) []any {
			to = append(to, appendLease(nil, a.token), a.tokenArg(), a.life.Milliseconds(), a.stamp)
			return append(to, s.holdArgs(a.Young)...)
		}, reply: reply})
	}, func(a *Attempt, v any, err error) (State, error) {
		if err != nil {
			return State{}, err
		}
		reply, _ := v.([]any)
		parts := make([]string, 3)
		for i, p := range reply[:min(len(reply), len(parts))] {
			parts[i], _ = p.(string)
		}
		switch parts[0] {
		case "leased":
			a.owns = ownsLease
			return State{Kind: Mine}, nil
		case "claimed":
			a.owns, a.header, a.expiry = ownsClaim, []byte(parts[1]), parts[2]
			return State{Kind: Mine}, nil
		case "held":
			return State{Kind: Held}, nil
		case "busy":
			// a lease, or the beginning of an entry
			h := []byte(parts[1])
			if len(h) >= leaseSize && h[0] == entryByte && slices.Contains(a.sent, Token(h[tokenAt:leaseSize])) {
				// an earlier claim of this attempt
				a.token, a.owns, a.header, a.expiry = Token(h[tokenAt:leaseSize]), ownsClaim, h, "-1"
				return State{Kind: Mine}, nil
			}
			held := Decode(h)
			return State{Kind: Busy, Token: held.Token, Awaited: held.Awaited}, nil
		case "other":
			return State{Kind: Unknown}, nil
		default:
			return State{}, fmt.Errorf("unexpected reply to a claim: %T", v)
		}
	})
}

// request sends requests for leases or claims, each time with new tokens, until there are replies.
// Each token is sent once. If a reply shows an earlier token of the attempt, request adopts it.
//
// Two failures do not count for sends. After a closed connection, the next request uses another
// connection. After a partialError, the next request runs a separate script for each key.
func (s *Store) request(
	ctx context.Context, attempts []*Attempt, sends int, send func([]*Attempt, replyFunc),
	parse func(*Attempt, any, error) (State, error),
) {
	stale := 0
	for i := 0; i < sends && len(attempts) > 0 && (i+stale == 0 || ctx.Err() == nil); i++ {
		for _, a := range attempts {
			a.token = newToken()
		}
		var lost []*Attempt
		onlyStale := true
		send(attempts, func(a *Attempt, v any, err error) {
			found, err := parse(a, v, err)
			a.Err = err
			switch {
			case err == nil:
				a.State = found
				a.Adopt(&a.State)
			case !conn.IsReply(err): // an error reply is a refusal: Redis has done nothing
				a.sent = append(a.sent, a.token)
				lost = append(lost, a)
				_, partial := err.(partialError) //nolint:errorlint // not wrapped
				onlyStale = onlyStale && (partial || conn.Stale(err))
			}
		})
		if attempts = lost; onlyStale && stale < conn.MaxStale {
			stale++
			i--
		}
	}
}

// Renewal returns a copy of a that another goroutine can pass to Renew.
func (a *Attempt) Renewal() Attempt { return Attempt{key: a.key, life: a.life, token: a.token} }

// Renew extends leases and claims by another life. owned has the attempts that still own theirs,
// and those whose renewal failed, because they may still own theirs. failed is the error of one
// failed renewal, or nil.
func (s *Store) Renew(ctx context.Context, attempts []*Attempt) (owned []*Attempt, failed error) {
	s.evalAll(ctx, attempts, scriptCall{Script: renewScript, args: func(to []any, a *Attempt) []any {
		return append(to, a.tokenArg(), a.life.Milliseconds())
	}, reply: func(a *Attempt, v any, err error) {
		switch {
		case err != nil:
			failed = err
			owned = append(owned, a)
		case v == int64(1):
			owned = append(owned, a)
		}
	}})
	return owned, failed
}

// Owns reports whether the attempt is known to own a lease or a claim.
func (a *Attempt) Owns() bool { return a.owns != ownsNothing }

// Owes reports whether the attempt has sent requests whose replies were lost. Redis may have
// granted them, so Release also releases their leases and claims.
func (a *Attempt) Owes() bool { return len(a.sent) > 0 }

// Fail replaces leases by failure markers that live for errorTTL, so that waiting callers do not
// load the key one after another. A claimed entry stays; for errorTTL only an attempt without For
// can claim it.
func (s *Store) Fail(ctx context.Context, attempts []*Attempt, errorTTL time.Duration) {
	s.end(ctx, attempts, string([]byte{failedByte}), errorTTL)
}

// EndUnstorable replaces a lease by a marker that lives for life, and shows readers that the value
// cannot be stored. So they load it themselves instead of waiting for one load after another. A
// marker voids no lease: like a value, it replaces only the attempt's own.
func (s *Store) EndUnstorable(ctx context.Context, attempts []*Attempt, reason Reason, life time.Duration) {
	s.end(ctx, attempts, string([]byte{unstorableByte, byte(reason)}), life)
}

// Release releases leases and claims, including those whose replies were lost. It does nothing
// for attempts that own nothing.
func (s *Store) Release(ctx context.Context, attempts []*Attempt) {
	attempts = slices.DeleteFunc(slices.Clone(attempts), func(a *Attempt) bool { return !a.Owns() && !a.Owes() })
	s.end(ctx, attempts, "", 0)
}

// end releases leases and claims. If marker is not empty, it stays in their place for life.
func (s *Store) end(ctx context.Context, attempts []*Attempt, marker string, life time.Duration) {
	if len(attempts) == 0 {
		return
	}
	s.evalAll(ctx, attempts, scriptCall{Script: endScript, args: func(to []any, a *Attempt) []any {
		to = append(to, marker, max(life.Milliseconds(), 1), a.header, cmp.Or(a.expiry, "-1"), a.tokenArg())
		for _, t := range a.sent {
			to = append(to, t[:])
		}
		return to
	}, reply: func(a *Attempt, v any, err error) {
		a.Err = err
		a.Awaited = a.Awaited || err == nil && v == int64(2)
		a.owns, a.header, a.expiry, a.sent = ownsNothing, nil, "", nil
	}})
}

// Exchange stores e, with a new stamp, in place of the mark that the hold with this token has left
// in key, and ends that hold. The command is sent once: after a lost reply the entry may or may
// not be stored.
func (s *Store) Exchange(ctx context.Context, key, token string, e Entry, life time.Duration) (stored bool, err error) {
	e.Stamp = newToken()
	a := NewAttempt(key, life)
	if b := appendEntry(nil, e); len(b) > maxScriptBytes {
		if stored, err = s.exchangeByRename(ctx, key, token, e.Stamp, b, life); err == nil || !conn.IsReply(err) ||
			conn.Unable(err) {
			return stored, err
		}
	}
	s.evalAll(ctx, []*Attempt{&a},
		scriptCall{Script: exchangeScript, once: true, args: func(to []any, _ *Attempt) []any {
			return append(to, appendMark(nil, token), appendEntry(nil, e), life.Milliseconds(), s.lag.Milliseconds())
		}, reply: func(_ *Attempt, v any, failed error) { stored, err = failed == nil && v == int64(1), failed }})
	return stored, err
}

// Expire returns the command that ends the soft life of the entry of a key and voids its claim.
// If the key holds anything else, the command deletes it.
func Expire(ctx context.Context, key string) redis.Cmder {
	stamp := newToken()
	return redis.NewCmd(ctx, "eval", expireScript.Source, 1, key, stamp[:])
}

// Await looks up the keys of attempts, and counts this process among those who wait for the ends of
// their leases. If enough processes wait, compared to those that listen to the channel, a lease is
// awaited: see State.Awaited. The states are those of a lookup, and leases have their State.Left.
func (s *Store) Await(ctx context.Context, attempts []*Attempt, channel string) {
	s.evalAll(ctx, attempts, scriptCall{Script: awaitScript, args: func(to []any, _ *Attempt) []any {
		return append(to, channel)
	}, reply: func(a *Attempt, v any, err error) {
		left := int64(0)
		if lease, ok := v.([]any); ok && len(lease) == 2 {
			v = lease[0]
			left, _ = lease[1].(int64)
		}
		a.State, a.Err = taken(a, v, err)
		a.State.Left = time.Duration(left) * time.Millisecond
	}})
}

// granted is the value that the replyFunc of a request for a lease receives if Redis grants it.
type granted struct{}

// Take requests leases of keys that hold nothing, or bytes that cannot be decoded (State.Kind is
// Unknown). Such bytes are replaced if they are still those that were read. The resulting state
// is Mine if the lease is granted, Held if the key is on hold, otherwise what the key holds.
func (s *Store) Take(ctx context.Context, attempts []*Attempt) {
	s.request(ctx, attempts, maxSends, func(attempts []*Attempt, reply replyFunc) {
		s.takeByScript(ctx, s.takeBySet(ctx, attempts, reply), nil, reply)
	}, taken)
}

// TakeFirst is Take for keys that were not looked up before. It takes one trip, within the timeout
// of a lookup, and another one if the script has failed for one of the keys. sizes estimates the
// length of the entries, as it does for First.
func (s *Store) TakeFirst(ctx context.Context, sizes *Sizes, attempts []*Attempt) {
	s.request(ctx, attempts, 1, func(attempts []*Attempt, reply replyFunc) {
		s.takeByScript(ctx, attempts, sizes, reply)
	}, taken)
}

// taken returns the state of a key after a request for its lease.
func taken(a *Attempt, v any, err error) (State, error) {
	switch v.(type) {
	case granted:
		a.owns = ownsLease
		return State{Kind: Mine}, nil
	case int64:
		return State{Kind: Held}, err
	}
	found, _ := v.(string)
	s := State{}
	if found != "" {
		s = Decode([]byte(found))
		s.Long = len(found) >= FirstRead
	}
	return s, err
}

// takeByScript requests leases by takeScript, which returns no value for a lease that it grants.
// first estimates the length of the entries of keys that were not looked up before, and is nil for
// other keys.
func (s *Store) takeByScript(ctx context.Context, attempts []*Attempt, first *Sizes, reply replyFunc) {
	s.evalAll(ctx, attempts, scriptCall{Script: takeScript, once: true, first: first,
		args: func(to []any, a *Attempt) []any {
			hash := ""
			if a.State.Kind == Unknown {
				hash = conn.SHA1(a.State.Raw[:min(len(a.State.Raw), FirstRead)])
			}
			to = append(to, appendLease(nil, a.token), a.life.Milliseconds(), hash)
			return append(to, s.holdArgs(a.Young)...)
		}, reply: func(a *Attempt, v any, err error) {
			if errors.Is(err, redis.Nil) { // the script has returned no value
				v, err = granted{}, nil
			}
			reply(a, v, err)
		}})
}

// takeBySet requests leases by SET with NX, which is a fifth of the work of takeScript for Redis.
// If a key exists, its content is read in another trip: SET with GET would return the whole string,
// however long. takeBySet returns the attempts that need the script. These are all attempts if keys
// may be on hold. Otherwise they are the attempts that replace undecodable bytes, and the attempts
// whose key existed at the SET and was gone at the read.
func (s *Store) takeBySet(ctx context.Context, attempts []*Attempt, reply replyFunc) (others []*Attempt) {
	if s.holds {
		return attempts
	}
	var plain, existing []*Attempt
	for _, a := range attempts {
		if a.State.Kind == Unknown {
			others = append(others, a)
		} else {
			plain = append(plain, a)
		}
	}
	cmds := make([]*redis.Cmd, len(plain))
	const perCmd = 6
	args := make([]any, 0, perCmd*len(plain))       // of all commands
	leases := make([]byte, 0, leaseSize*len(plain)) // in args
	for i, a := range plain {
		leases = appendLease(leases, a.token)
		token := leases[leaseSize*i : len(leases) : len(leases)]
		args = append(args, "set", a.key, token, "px", a.life.Milliseconds(), "nx")
		cmds[i] = redis.NewCmd(ctx, args[perCmd*i:len(args):len(args)]...)
	}
	s.send(ctx, cmds, &s.requests, func(i int, v any, err error) {
		switch {
		case errors.Is(err, redis.Nil): // the key exists
			existing = append(existing, plain[i])
		case err == nil:
			reply(plain[i], granted{}, nil)
		default:
			reply(plain[i], v, err)
		}
	})
	if len(existing) == 0 {
		return others
	}
	keys := make([]string, len(existing))
	for i, a := range existing {
		keys[i] = a.key
	}
	s.Read(ctx, new(Sizes), keys, func(i int, held *State, err error) {
		if err == nil && len(held.Raw) == 0 {
			// the key is gone by now, or it is an empty string, for which SET with NX fails
			others = append(others, existing[i])
		} else {
			reply(existing[i], string(held.Raw), err)
		}
	})
	return others
}
