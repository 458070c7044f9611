package lease

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Take asks for the leases of keys that hold nothing, or what cannot be read (State.Kind is Unknown), which is replaced if it is still what
// was read. The state is Mine if the lease is given, Held if the key is on hold, otherwise what the key holds.
func (s *Store) Take(ctx context.Context, as []*Attempt) {
	s.ask(ctx, as, func(as []*Attempt, reply replyFunc) {
		s.takeByScript(ctx, s.takeBySet(ctx, as, reply), reply)
	}, func(a *Attempt, v any, err error) (State, error) {
		if errors.Is(err, redis.Nil) {
			a.state = holdsLease
			return State{Kind: Mine}, nil
		}
		if _, on := v.(int64); on {
			return State{Kind: Held}, err
		}
		held, _ := v.(string)
		return decode([]byte(held)), err
	})
}

func (s *Store) takeByScript(ctx context.Context, as []*Attempt, reply replyFunc) {
	s.evalAll(ctx, as, takeScript, true, func(a *Attempt) []any {
		hash := ""
		if a.State.Kind == Unknown {
			hash = conn.SHA1(a.State.Raw)
		}
		return append([]any{appendLease(nil, a.token), a.life.Milliseconds(), hash}, s.holdArgs(a)...)
	}, reply)
}

// takeBySet does what takeScript does, where that is no more than SET with NX and GET: gives the lease if there is nothing, else answers what there is. It is a fifth of the work for Redis. It returns those for which
// it would not do: where keys may be on hold, where there is something to be replaced, and on servers before Redis 7.0, which refuse the two together (https://redis.io/commands/set, History).
func (s *Store) takeBySet(ctx context.Context, as []*Attempt, reply replyFunc) (others []*Attempt) {
	if s.holds || s.old.Load() {
		return as
	}
	var plain []*Attempt
	for _, a := range as {
		if a.State.Kind == Unknown {
			others = append(others, a)
		} else {
			plain = append(plain, a)
		}
	}
	cmds := make([]*redis.Cmd, len(plain))
	for i, a := range plain {
		cmds[i] = redis.NewCmd(ctx, "set", a.key, appendLease(nil, a.token), "px", a.life.Milliseconds(), "nx", "get")
	}
	s.send(ctx, cmds, true, func(i int, v any, err error) {
		if redis.HasErrorPrefix(err, "syntax error") {
			s.old.Store(true)
			others = append(others, plain[i])
			return
		}
		reply(plain[i], v, err)
	})
	return others
}
