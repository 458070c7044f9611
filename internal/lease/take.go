package lease

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

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
			s = decode([]byte(found))
			s.Long = len(found) >= FirstLook
		}
		return s, err
	})
}

func (s *Store) takeByScript(ctx context.Context, as []*Attempt, reply replyFunc) {
	s.evalAll(ctx, as, takeScript, true, func(a *Attempt) []any {
		hash := ""
		if a.State.Kind == Unknown {
			hash = conn.SHA1(a.State.Raw[:min(len(a.State.Raw), FirstLook)])
		}
		return append([]any{appendLease(nil, a.token), a.life.Milliseconds(), hash}, s.holdArgs(a)...)
	}, reply)
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
	s.Read(ctx, nil, keys, func(i int, held *State, err error) {
		if err == nil && len(held.Raw) == 0 { // it has gone, or is an empty string, which SET takes for something
			others = append(others, refused[i])
		} else {
			reply(refused[i], string(held.Raw), err)
		}
	})
	return others
}
