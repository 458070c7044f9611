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

// maxSends bounds how often a lease is asked for when replies are lost.
const maxSends = 2

// Attempt is one process's try at one key: it reads the key, takes it for a load, stores what the
// load gave or gives up. Its steps are methods of Store, which take many attempts in one trip, and
// leave what each has come to in State and Err. It is used by one goroutine.
type Attempt struct {
	State State  // what the last Take or Claim has shown, or a Get or Read that was put here
	Err   error  // why the last step failed
	Young uint64 // the generation of the key's loader, if it may be so young that the loader is on hold; 0: it is not

	key   string
	life  time.Duration
	stamp []byte // of the entry that Claim is for; empty: whatever the key holds

	token  Token
	owns   owning
	header []byte // of the claimed entry, as it was before
	expiry string // when that entry was to expire, Unix milliseconds by Redis' clock

	sent []Token // tokens whose fate is not known, since a reply was lost
}

// owning is what an attempt has of its key.
type owning uint8

const (
	ownsNothing owning = iota
	ownsLease
	ownsClaim
)

// NewAttempt begins an attempt at key. A lease that it takes lives for life unless it is renewed.
func NewAttempt(key string, life time.Duration) Attempt { return Attempt{key: key, life: life} }

// For has Claim take only the entry with this stamp, as it was read.
func (a *Attempt) For(stamp Token) { a.stamp = stamp[:] }

// tokenArg is a copy of the token: a command that was left behind at its time-out may still be
// writing it when the attempt has another one, and must not send that.
func (a *Attempt) tokenArg() []byte {
	t := a.token
	return t[:]
}

// Adopt takes over the lease that a key was found with, if this attempt has it, or has asked for
// it and the reply was lost: the state becomes Mine, and the load may begin now. Any other state
// stays as it is.
func (a *Attempt) Adopt(found *State) {
	if found.Kind == Busy && (slices.Contains(a.sent, found.Token) || a.owns == ownsLease && a.token == found.Token) {
		a.token, a.owns = found.Token, ownsLease
		*found = State{Kind: Mine}
	}
}

// Claim asks for loads of keys whatever they hold, but for somebody else's load; or of those
// entries that they were read to hold (see For). The state is Mine, Busy, Held, or, if it is
// another entry now or none, Unknown.
func (s *Store) Claim(ctx context.Context, as []*Attempt) {
	s.ask(ctx, as, func(as []*Attempt, reply replyFunc) {
		s.evalAll(ctx, as, request{claimScript, true, func(a *Attempt) []any {
			return append([]any{appendLease(nil, a.token), a.tokenArg(), a.life.Milliseconds(), a.stamp}, s.holdArgs(a.Young)...)
		}, reply})
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
			h := []byte(parts[1])                                                                                 // a lease, or the part of an entry that scripts know
			if len(h) >= leaseSize && h[0] == entryByte && slices.Contains(a.sent, Token(h[tokenAt:leaseSize])) { // my claim, whose reply was lost
				a.token, a.owns, a.header, a.expiry = Token(h[tokenAt:leaseSize]), ownsClaim, h, "-1"
				return State{Kind: Mine}, nil
			}
			return State{Kind: Busy, Token: Decode(h).Token}, nil
		case "other":
			return State{Kind: Unknown}, nil
		default:
			return State{}, fmt.Errorf("unexpected reply to a claim: %T", v)
		}
	})
}

// ask sends requests for keys, with a fresh token each time, until replies come. One token is sent
// once; an earlier one that a reply shows is adopted. A request that a closed connection has lost
// is not counted: the next one goes by another.
func (s *Store) ask(ctx context.Context, as []*Attempt, send func([]*Attempt, replyFunc), answer func(*Attempt, any, error) (State, error)) {
	stale := 0
	for i := 0; i < maxSends && len(as) > 0 && (i+stale == 0 || ctx.Err() == nil); i++ {
		for _, a := range as {
			a.token = newToken()
		}
		var lost []*Attempt
		onlyStale := true
		send(as, func(a *Attempt, v any, err error) {
			found, err := answer(a, v, err)
			a.Err = err
			switch {
			case err == nil:
				a.State = found
				a.Adopt(&a.State)
			case !conn.IsReply(err): // a reply refuses for a reason: nothing was done
				a.sent = append(a.sent, a.token)
				lost = append(lost, a)
				onlyStale = onlyStale && conn.Stale(err)
			}
		})
		if as = lost; onlyStale && stale < conn.MaxStale {
			stale++
			i--
		}
	}
}

// Renewal is a copy of what the attempt holds now, for keeping it alive on another goroutine.
func (a *Attempt) Renewal() *Attempt { return &Attempt{key: a.key, life: a.life, token: a.token} }

// Renew keeps leases and claims alive for another life. It answers which are still owned, and
// an error if a try failed.
func (s *Store) Renew(ctx context.Context, as []*Attempt) (owned []*Attempt, failed error) {
	s.evalAll(ctx, as, request{renewScript, false, func(a *Attempt) []any {
		return []any{a.tokenArg(), a.life.Milliseconds()}
	}, func(a *Attempt, v any, err error) {
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

// Filling is an entry to be stored in the place of an attempt's lease or claim.
type Filling struct {
	*Attempt
	Entry  Entry
	Life   time.Duration
	Stored bool // the result; if not, and Err is nil, the lease was lost: an invalidation came between, or it ran out
}

// Fill stores the entries, each with its attempt's token as its stamp.
func (s *Store) Fill(ctx context.Context, fs []*Filling) {
	as := make([]*Attempt, len(fs))
	by := make(map[*Attempt]*Filling, len(fs))
	for i, f := range fs {
		f.Entry.Stamp = f.token
		as[i], by[f.Attempt] = f.Attempt, f
	}
	for range maxSends { // it recognises itself, so it may be repeated
		var lost []*Attempt
		script := fillLeasesScript
		if slices.ContainsFunc(as, func(a *Attempt) bool { return a.owns == ownsClaim }) {
			script = fillScript
		}
		s.evalAll(ctx, as, request{script, false, func(a *Attempt) []any {
			f := by[a]
			b := appendEntry(make([]byte, 0, headerSize+len(f.Entry.Key)+len(f.Entry.Payload)), f.Entry)
			return []any{a.tokenArg(), b, f.Life.Milliseconds()}
		}, func(a *Attempt, v any, err error) {
			a.Err = err
			switch {
			case err == nil:
				a.owns, a.header, a.expiry = ownsNothing, nil, ""
				by[a].Stored = v == int64(1)
			case !conn.IsReply(err):
				lost = append(lost, a)
			}
		}})
		if as = lost; len(as) == 0 {
			return
		}
	}
}

// Owns tells whether a lease or claim is known to be owned.
func (a *Attempt) Owns() bool { return a.owns != ownsNothing }

// Owes tells whether leases or claims may be owned whose replies were lost. Release gives them up
// too.
func (a *Attempt) Owes() bool { return len(a.sent) > 0 }

// Fail gives leases up, and leaves markers that live for errorTTL, so that callers who wait do not
// load one after another. An entry that was claimed stays, and is not claimed in that time, except
// by a Claim of whatever the key has.
func (s *Store) Fail(ctx context.Context, as []*Attempt, errorTTL time.Duration) {
	s.end(ctx, as, string([]byte{failedByte}), errorTTL)
}

// Release gives up what is owned, if anything is, also leases whose replies were lost. It may be
// called after any other end.
func (s *Store) Release(ctx context.Context, as []*Attempt) {
	as = slices.DeleteFunc(slices.Clone(as), func(a *Attempt) bool { return !a.Owns() && !a.Owes() })
	s.end(ctx, as, "", 0)
}

func (s *Store) end(ctx context.Context, as []*Attempt, marker string, errorTTL time.Duration) {
	if len(as) == 0 {
		return
	}
	s.evalAll(ctx, as, request{endScript, false, func(a *Attempt) []any {
		args := []any{marker, max(errorTTL.Milliseconds(), 1), a.header, cmp.Or(a.expiry, "-1"), a.tokenArg()}
		for _, t := range a.sent {
			args = append(args, t[:])
		}
		return args
	}, func(a *Attempt, _ any, err error) {
		a.Err = err
		a.owns, a.header, a.expiry, a.sent = ownsNothing, nil, "", nil
	}})
}

// Exchange stores e, with a stamp of its own, in the place of the mark of the holder of key under
// token, and ends that hold. It is sent once: an entry whose answer is late is not known to be
// there.
func (s *Store) Exchange(ctx context.Context, key, token string, e Entry, life time.Duration) (stored bool, err error) {
	e.Stamp = newToken()
	a := NewAttempt(key, life)
	s.evalAll(ctx, []*Attempt{&a}, request{exchangeScript, true, func(*Attempt) []any {
		return []any{appendMark(nil, token), appendEntry(nil, e), life.Milliseconds(), s.lag.Milliseconds()}
	}, func(_ *Attempt, v any, failed error) { stored, err = failed == nil && v == int64(1), failed }})
	return stored, err
}

// Expire is the command that ends the soft life of the entry that a key holds, and voids its claim;
// if the key holds anything else, that is deleted.
func Expire(ctx context.Context, key string) redis.Cmder {
	stamp := newToken()
	return redis.NewCmd(ctx, "eval", expireScript.Source, 1, key, stamp[:])
}

// given is the answer of takeScript when it gives the lease: no value, for which the client has
// this error. SET with NX says the opposite with it: see takeBySet.
var given = redis.Nil

// Take asks for the leases of keys that hold nothing, or what cannot be read (State.Kind is
// Unknown), which is replaced if it is still what was read. The state is Mine if the lease is
// given, Held if the key is on hold, otherwise what the key holds.
func (s *Store) Take(ctx context.Context, as []*Attempt) {
	s.ask(ctx, as, func(as []*Attempt, reply replyFunc) {
		s.takeByScript(ctx, s.takeBySet(ctx, as, reply), reply)
	}, func(a *Attempt, v any, err error) (State, error) {
		if errors.Is(err, given) {
			a.owns = ownsLease
			return State{Kind: Mine}, nil
		}
		if _, on := v.(int64); on {
			return State{Kind: Held}, err
		}
		found, _ := v.(string)
		s := State{}
		if found != "" {
			s = Decode([]byte(found))
			s.Long = len(found) >= FirstLook
		}
		return s, err
	})
}

func (s *Store) takeByScript(ctx context.Context, as []*Attempt, reply replyFunc) {
	s.evalAll(ctx, as, request{takeScript, true, func(a *Attempt) []any {
		hash := ""
		if a.State.Kind == Unknown {
			hash = conn.SHA1(a.State.Raw[:min(len(a.State.Raw), FirstLook)])
		}
		return append([]any{appendLease(nil, a.token), a.life.Milliseconds(), hash}, s.holdArgs(a.Young)...)
	}, reply})
}

// takeBySet does what takeScript does, where that is no more than SET with NX: gives the lease if
// there is nothing. It is a fifth of the work for Redis. Where there is something, that is looked
// at by another trip: SET with GET would answer it whole, however long it is. It returns those for
// which it would not do: where keys may be on hold, and where there is something to be replaced.
func (s *Store) takeBySet(ctx context.Context, as []*Attempt, reply replyFunc) (others []*Attempt) {
	if s.holds {
		return as
	}
	var plain, refused []*Attempt
	for _, a := range as {
		if a.State.Kind == Unknown {
			others = append(others, a)
		} else {
			plain = append(plain, a)
		}
	}
	cmds := make([]*redis.Cmd, len(plain))
	for i, a := range plain {
		cmds[i] = redis.NewCmd(ctx, "set", a.key, appendLease(nil, a.token), "px", a.life.Milliseconds(), "nx")
	}
	s.send(ctx, cmds, true, func(i int, v any, err error) {
		switch {
		case errors.Is(err, redis.Nil): // SET with NX has not set it
			refused = append(refused, plain[i])
		case err == nil:
			reply(plain[i], nil, given)
		default:
			reply(plain[i], v, err)
		}
	})
	if len(refused) == 0 {
		return others
	}
	keys := make([]string, len(refused))
	for i, a := range refused {
		keys[i] = a.key
	}
	s.Read(ctx, new(Sizes), keys, func(i int, held *State, err error) {
		if err == nil && len(held.Raw) == 0 { // it has gone, or is an empty string, which SET takes for something
			others = append(others, refused[i])
		} else {
			reply(refused[i], string(held.Raw), err)
		}
	})
	return others
}
