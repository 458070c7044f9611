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

// request is a script that is run on the keys of attempts.
type request struct {
	conn.Script
	once  bool // the client must not repeat it when a reply is lost
	args  func(*Attempt) []any
	reply replyFunc // called for each attempt, with the script's answer or an error
}

// evalAll runs a script on the key of each attempt, in one trip.
//
// Many keys are changed by one script, in its wide form: a command each is what they cost most,
// here and in Redis. Where it fails for one key, it is not known what it has done for the others.
// They are asked for one by one; or, if a request must not be repeated, they have their replies,
// which say so.
func (s *Store) evalAll(ctx context.Context, as []*Attempt, r request) {
	if s.wide(as) {
		var again []*Attempt
		s.evalParts(ctx, slices.Collect(slices.Chunk(as, atOnce)), *r.Wide, r, func(part []*Attempt, v any, err error) {
			again = append(again, answerWide(part, v, err, r)...)
		})
		as = again
	}
	each := make([][]*Attempt, len(as))
	for i := range as {
		each[i] = as[i : i+1]
	}
	s.evalParts(ctx, each, r.Script, r, func(part []*Attempt, v any, err error) { r.reply(part[0], v, err) })
}

// atOnce is the maximum number of keys that one script changes: Redis serves nobody else meanwhile.
const atOnce = 100

// wide reports whether many keys are changed by one script. Not on a cluster, where they are in
// different slots; nor those whose fate is not known, for that may be what one of them does to the
// others.
func (s *Store) wide(as []*Attempt) bool {
	return len(as) > 1 && !s.conn.Cluster() && !slices.ContainsFunc(as, (*Attempt).Owes)
}

// evalParts runs a script by one command for each part, and again in full where the server does not
// know it: then nothing was done, so it is not a second send.
func (s *Store) evalParts(ctx context.Context, parts [][]*Attempt, sc conn.Script, r request, reply func(part []*Attempt, v any, err error)) {
	eval := func(name, body string, parts [][]*Attempt) (unknown [][]*Attempt) {
		scripts := make([]*redis.Cmd, len(parts))
		for i, part := range parts {
			scripts[i] = redis.NewCmd(ctx, s.evalArgs(name, body, part, sc.Wide == nil, r)...)
		}
		s.send(ctx, scripts, r.once, func(i int, v any, err error) {
			if conn.IsUnknown(err, name) {
				unknown = append(unknown, parts[i])
			} else {
				reply(parts[i], v, err)
			}
		})
		return unknown
	}
	eval("eval", sc.Source, eval("evalsha", sc.Hash, parts))
}

// evalArgs are the arguments of the command for one part: those of the one attempt in it, or those
// that a wide script takes.
func (s *Store) evalArgs(name, body string, part []*Attempt, wide bool, r request) []any {
	per := len(s.keys(part[0].key, r.once))
	cmd := make([]any, 3, 4+len(part)*(per+6))
	cmd[0], cmd[1], cmd[2] = name, body, len(part)*per
	for _, a := range part {
		cmd = append(cmd, s.keys(a.key, r.once)...)
	}
	if wide {
		cmd = append(cmd, per)
	}
	for _, a := range part {
		own := r.args(a)
		if wide {
			cmd = append(cmd, len(own))
		}
		cmd = append(cmd, own...)
	}
	return cmd
}

// answerWide gives each attempt its part of the answer. Those that it returns have none.
func answerWide(part []*Attempt, v any, err error, r request) (again []*Attempt) {
	answers, _ := v.([]any)
	switch {
	case err == nil && len(answers) == len(part):
		for i, a := range part {
			if answers[i] == nil {
				r.reply(a, nil, given)
			} else {
				r.reply(a, answers[i], nil)
			}
		}
		return nil
	case err == nil:
		err = errPartly{errors.New("unexpected reply to a script for many keys")}
	case conn.IsReply(err) && !r.once:
		return part
	case conn.IsReply(err):
		err = errPartly{err} // it may have been given leases before it failed
	}
	for _, a := range part {
		r.reply(a, nil, err)
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
