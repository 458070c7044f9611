package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// maxSends bounds how often a lease is asked for when replies are lost.
const maxSends = 2

// Attempt is one process's try at one key: it reads the key, takes it for a load, stores what the load gave or gives up.
// It is used by one goroutine.
type Attempt struct {
	store *Store
	key   string
	life  time.Duration

	token  Token
	state  hold
	header []byte // of the claimed entry, as it was before
	expiry string // when that entry was to expire, Unix milliseconds by Redis' clock

	sent []Token // tokens whose fate is not known, since a reply was lost
}

type hold uint8

const (
	holdsNothing hold = iota
	holdsLease
	holdsClaim
)

// Attempt begins an attempt at key. A lease that it takes lives for life unless it is renewed.
func (s *Store) Attempt(key string, life time.Duration) *Attempt {
	return &Attempt{store: s, key: key, life: life}
}

// Read looks at the key. It answers Mine if the key holds a lease that this attempt asked for and whose reply was lost: the load may
// begin now.
func (a *Attempt) Read(ctx context.Context) (State, error) {
	s, err := a.store.get(ctx, a.key)
	return a.adopt(s), err
}

// Take asks for the lease. It answers Mine if it is given, otherwise what the key holds. unreadable, if not nil, is what the key
// held when it was read, and is replaced if it is still that.
func (a *Attempt) Take(ctx context.Context, unreadable []byte) (State, error) {
	hash := ""
	if unreadable != nil {
		hash = sha1Hex(unreadable)
	}
	return a.ask(ctx, func(t Token) (State, error) {
		v, err := a.store.eval(ctx, takeScript, true, a.key, appendLease(nil, t), a.life.Milliseconds(), hash)
		if errors.Is(err, redis.Nil) {
			a.state = holdsLease
			return State{Kind: Mine}, nil
		}
		held, _ := v.(string)
		return decode([]byte(held)), err
	})
}

// Claim asks for a load of a key whatever it holds, but for somebody else's load. It answers Mine or Busy.
func (a *Attempt) Claim(ctx context.Context) (State, error) {
	return a.ask(ctx, func(t Token) (State, error) {
		v, err := a.store.eval(ctx, claimScript, true, a.key, appendLease(nil, t), t[:], a.life.Milliseconds())
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
			a.state = holdsLease
			return State{Kind: Mine}, nil
		case "claimed":
			a.state, a.header, a.expiry = holdsClaim, []byte(parts[1]), parts[2]
			return State{Kind: Mine}, nil
		case "busy":
			s := decode([]byte(parts[1]))
			if s.Kind == Stored && slices.Contains(a.sent, s.Entry.Stamp) { // my claim, whose reply was lost
				a.token, a.state, a.header, a.expiry = s.Entry.Stamp, holdsClaim, s.Raw, "-1"
				return State{Kind: Mine}, nil
			}
			return State{Kind: Busy, Token: s.Token}, nil
		default:
			return State{}, fmt.Errorf("unexpected reply to a claim: %T", v)
		}
	})
}

// ask sends a request for the key with a fresh token each time, until a reply comes. One token is sent once; an earlier one that a
// reply shows is adopted.
func (a *Attempt) ask(ctx context.Context, send func(Token) (State, error)) (s State, err error) {
	for i := 0; i < maxSends && (i == 0 || ctx.Err() == nil); i++ {
		if mutant.Active != mutant.TokenSentTwice || i == 0 {
			a.token = newToken()
		}
		s, err = send(a.token)
		if err == nil {
			return a.adopt(s), nil
		}
		if isReply(err) { // refused for a reason: nothing was done
			return State{}, err
		}
		a.sent = append(a.sent, a.token)
	}
	return State{}, err
}

// adopt turns a lease of this attempt's whose reply was lost into Mine.
func (a *Attempt) adopt(s State) State {
	if s.Kind == Busy && slices.Contains(a.sent, s.Token) {
		a.token, a.state = s.Token, holdsLease
		return State{Kind: Mine}
	}
	return s
}

// Renewal is a lease or claim that was taken, for keeping it alive. Unlike the Attempt it may be used by any goroutine.
type Renewal struct {
	store *Store
	key   string
	life  time.Duration
	token Token
}

// Renewal is of what the attempt holds now.
func (a *Attempt) Renewal() Renewal { return Renewal{a.store, a.key, a.life, a.token} }

// Renew keeps the lease or claim alive for another life. It answers false if it is lost.
func (r Renewal) Renew(ctx context.Context) (bool, error) {
	v, err := r.store.eval(ctx, renewScript, false, r.key, r.token[:], r.life.Milliseconds())
	return v == int64(1), err
}

// Fill stores e, for life, in the place of the lease or claim. It answers false if that is lost: an invalidation came between, or
// it ran out. It sets the entry's stamp.
func (a *Attempt) Fill(ctx context.Context, e Entry, life time.Duration) (stored bool, err error) {
	e.Stamp = a.token
	b := appendEntry(make([]byte, 0, headerSize+len(e.Payload)), e)
	for range maxSends { // it recognises itself, so it may be repeated
		var v any
		v, err = a.store.eval(ctx, fillScript, false, a.key, a.token[:], b, life.Milliseconds())
		if err == nil {
			a.state, a.header, a.expiry = holdsNothing, nil, ""
			return v == int64(1), nil
		}
		if isReply(err) {
			break
		}
	}
	return false, err
}

// Fail gives the lease up, and leaves a marker for window so that those who wait do not load one after another. An entry that was
// claimed stays as it was, and no marker is left.
func (a *Attempt) Fail(ctx context.Context, window time.Duration) error {
	return a.end(ctx, string([]byte{failedByte}), window)
}

// Holds tells whether a lease or claim is known to be held.
func (a *Attempt) Holds() bool { return a.state != holdsNothing }

// Owes tells whether leases or claims may be held whose replies were lost. Release gives them up too.
func (a *Attempt) Owes() bool { return len(a.sent) > 0 }

// Release gives up what is held, if anything is, also leases whose replies were lost. It may be called after any other end.
func (a *Attempt) Release(ctx context.Context) error {
	if !a.Holds() && !a.Owes() {
		return nil
	}
	return a.end(ctx, "", 0)
}

func (a *Attempt) end(ctx context.Context, marker string, window time.Duration) error {
	args := []any{marker, max(window.Milliseconds(), 1), a.header, cmp.Or(a.expiry, "-1"), a.token[:]}
	for _, t := range a.sent {
		args = append(args, t[:])
	}
	a.state, a.header, a.expiry, a.sent = holdsNothing, nil, "", nil
	_, err := a.store.eval(ctx, endScript, false, a.key, args...)
	return err
}
