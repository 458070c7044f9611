package lease

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// read sends GETs in one trip, and leaves each with its reply.
func (s *Store) read(ctx, bound context.Context, cmds []redis.Cmder) conn.Sent {
	whole := s.together(bound, cmds)
	sent := s.conn.Ask(ctx, bound, whole)
	if sent.Err(0) == nil { // else they must not be read; on one server all are sent, or none
		share(whole, cmds)
	}
	return sent
}

// together makes MGETs of GETs, but on a cluster, where they are in different slots: a command costs the client, and Redis, more than all else of a read.
func (s *Store) together(ctx context.Context, cmds []redis.Cmder) []redis.Cmder {
	if len(cmds) < 2 || s.conn.Cluster() {
		return cmds
	}
	whole := make([]redis.Cmder, 0, (len(cmds)+atOnce-1)/atOnce)
	for ; len(cmds) > 0; cmds = cmds[min(atOnce, len(cmds)):] {
		args := make([]any, 1, 1+atOnce)
		args[0] = "mget"
		for _, cmd := range cmds[:min(atOnce, len(cmds))] {
			args = append(args, cmd.Args()[1])
		}
		whole = append(whole, redis.NewSliceCmd(ctx, args...))
	}
	return whole
}

// share leaves GETs with what the MGETs that together has made of them have been answered. To MGET, what is no string is not there: whoever asks for its lease is told.
func share(whole, cmds []redis.Cmder) {
	for i, one := range whole {
		all, ok := one.(*redis.SliceCmd)
		if !ok { // they have been sent as they are
			return
		}
		some := cmds[i*atOnce : min((i+1)*atOnce, len(cmds))]
		values, err := all.Result()
		if err == nil && len(values) != len(some) {
			err = errors.New("MGET was answered with another number of values")
		}
		for j, cmd := range some {
			switch {
			case err != nil:
				cmd.SetErr(err)
			case values[j] == nil:
				cmd.SetErr(redis.Nil)
			default:
				text, _ := values[j].(string)
				cmd.(*redis.StringCmd).SetVal(text)
			}
		}
	}
}
