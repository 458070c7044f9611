package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// replyFunc is told what Redis has answered of an attempt's key: a value, or an error.
type replyFunc func(a *Attempt, v any, err error)

// evalAll runs a script on the key of each attempt, in one trip, and loads it first where Redis
// does not have it. The client may repeat it when a reply is lost, unless once is set. reply is
// called for each attempt, with the script's answer or an error.
func (s *Store) evalAll(ctx context.Context, as []*Attempt, sc conn.Script, once bool, args func(*Attempt) []any, reply replyFunc) {
	if s.wide(as) {
		as = s.evalWide(ctx, as, *sc.Wide, once, args, reply)
	}
	unknown := s.evalEach(ctx, as, "evalsha", sc.Hash, once, args, reply)
	s.evalEach(ctx, unknown, "eval", sc.Source, once, args, reply) // replies, so nothing was done: not a second send
}

// evalEach runs it by one command a key. It returns those whose server does not know the script.
func (s *Store) evalEach(ctx context.Context, as []*Attempt, name, body string, once bool, args func(*Attempt) []any, reply replyFunc) (unknown []*Attempt) {
	scripts := make([]*redis.Cmd, len(as))
	for i, a := range as {
		keys := s.keys(a, once)
		scripts[i] = redis.NewCmd(ctx, slices.Concat([]any{name, body, len(keys)}, keys, args(a))...)
	}
	s.send(ctx, scripts, once, func(i int, v any, err error) {
		if conn.IsUnknown(err, name) {
			unknown = append(unknown, as[i])
		} else {
			reply(as[i], v, err)
		}
	})
	return unknown
}

// atOnce is how many keys one script changes at the most: nobody else is served meanwhile.
const atOnce = 100

// wide tells whether many keys are changed by one script: a command each is what they cost most,
// here and in Redis. Not on a cluster, where they are in different slots; nor those whose fate is
// not known, for that may be what one of them does to the others.
func (s *Store) wide(as []*Attempt) bool {
	return len(as) > 1 && !s.conn.Cluster() && !slices.ContainsFunc(as, (*Attempt).Owes)
}

// evalWide runs the wide form of a script. Where it fails for one key, it is not known what it has
// done for the others: they are returned, to be asked for one by one; or, if a request must not be
// repeated, they have their replies, which say so.
func (s *Store) evalWide(ctx context.Context, as []*Attempt, sc conn.Script, once bool, args func(*Attempt) []any, reply replyFunc) (again []*Attempt) {
	parts := slices.Collect(slices.Chunk(as, atOnce))
	unknown := s.evalParts(ctx, parts, "evalsha", sc.Hash, once, args, func(part []*Attempt, v any, err error) {
		again = append(again, s.answerWide(part, v, err, once, reply)...)
	})
	s.evalParts(ctx, unknown, "eval", sc.Source, once, args, func(part []*Attempt, v any, err error) {
		again = append(again, s.answerWide(part, v, err, once, reply)...)
	})
	return again
}

// evalParts runs it by one command for each part, and returns those whose server does not know it.
func (s *Store) evalParts(ctx context.Context, parts [][]*Attempt, name, body string, once bool, args func(*Attempt) []any, reply func(part []*Attempt, v any, err error)) (unknown [][]*Attempt) {
	scripts := make([]*redis.Cmd, len(parts))
	for i, part := range parts {
		per := len(s.keys(part[0], once))
		cmd := make([]any, 3, 4+len(part)*(per+6))
		cmd[0], cmd[1], cmd[2] = name, body, len(part)*per
		for _, a := range part {
			cmd = append(cmd, s.keys(a, once)...)
		}
		cmd = append(cmd, per)
		for _, a := range part {
			own := args(a)
			cmd = append(append(cmd, len(own)), own...)
		}
		scripts[i] = redis.NewCmd(ctx, cmd...)
	}
	s.send(ctx, scripts, once, func(i int, v any, err error) {
		if conn.IsUnknown(err, name) {
			unknown = append(unknown, parts[i])
		} else {
			reply(parts[i], v, err)
		}
	})
	return unknown
}

// answerWide gives each attempt its part of the answer. Those that it returns have none.
func (s *Store) answerWide(part []*Attempt, v any, err error, once bool, reply replyFunc) (again []*Attempt) {
	answers, _ := v.([]any)
	switch {
	case err == nil && len(answers) == len(part):
		for i, a := range part {
			if answers[i] == nil {
				reply(a, nil, given)
			} else {
				reply(a, answers[i], nil)
			}
		}
		return nil
	case err == nil:
		err = errPartly{errors.New("unexpected reply to a script for many keys")}
	case conn.IsReply(err) && !once:
		return part
	case conn.IsReply(err):
		err = errPartly{err} // it may have been given leases before it failed
	}
	for _, a := range part {
		reply(a, nil, err)
	}
	return nil
}

// errPartly is a reply of Redis to a script for many keys, which does not tell for which it has
// been carried out. So it is not what is taken for a refusal.
type errPartly struct{ reply error }

func (e errPartly) Error() string { return fmt.Sprint("a script for many keys: ", e.reply) }

// send sends scripts in one trip.
func (s *Store) send(ctx context.Context, scripts []*redis.Cmd, once bool, reply func(i int, v any, err error)) {
	cmds := make([]redis.Cmder, len(scripts))
	for i, sc := range scripts {
		cmds[i] = sc
		if once {
			cmds[i] = conn.Once(sc)
		}
	}
	if len(cmds) == 0 {
		return
	}
	with := &s.changes
	if once {
		with = &s.asks
	}
	sent := with.some(ctx, cmds)
	for i, sc := range scripts {
		err := sent.Err(i)
		if err == nil {
			err = sc.Err()
		}
		var v any
		if err == nil {
			v = sc.Val()
		}
		reply(i, v, err)
	}
}
