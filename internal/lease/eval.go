package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A replyFunc receives the reply of Redis for the key of an attempt: a value or an error. A script
// that returns no value has the error redis.Nil.
type replyFunc func(a *Attempt, v any, err error)

// A scriptCall is a script that runs on the keys of attempts.
type scriptCall struct {
	conn.Script
	once bool // a request for leases, which must not be repeated when a reply is lost
	// of a script that is also the first lookup, and has its timeout: the sizes of replies;
	// otherwise nil
	first *Sizes
	args  func(to []any, a *Attempt) []any // appends the arguments of the script for the key of a
	reply replyFunc                        // called for each attempt, with the result of the script or an error
}

// evalAll runs a script on the key of each attempt, in one trip.
//
// One script changes many keys, in its wide form. Otherwise the commands, one for each key, would
// be most of the cost, in the process and in Redis. If that script fails for one key, what it has
// done for the others is unknown. The script is then repeated for each key separately. If it must
// not be repeated, each attempt gets an error that leaves the result open.
func (s *Store) evalAll(ctx context.Context, attempts []*Attempt, r scriptCall) {
	if s.wide(attempts) {
		var again []*Attempt
		s.evalParts(ctx, slices.Collect(chunksOf(attempts, maxWide, maxScriptBytes)), *r.Wide, r,
			func(part []*Attempt, v any, err error) {
				again = append(again, splitReply(part, v, err, r)...)
			})
		attempts = again
	}
	each := make([][]*Attempt, len(attempts))
	for i := range attempts {
		each[i] = attempts[i : i+1]
	}
	s.evalParts(ctx, each, r.Script, r, func(part []*Attempt, v any, err error) { r.reply(part[0], v, err) })
}

// maxWide is the maximum number of keys that one script changes. Redis serves no other client
// while it runs. For the same reason a script stores at most maxScriptBytes, see chunksOf.
const maxWide = 100

// wide reports whether a script is sent in its wide form. On a cluster it is not, because the keys
// are in different slots. It is not sent either if a reply to one of the attempts was lost before:
// the key of that attempt may be the reason, and a wide script would then fail for all keys.
func (s *Store) wide(attempts []*Attempt) bool {
	return len(attempts) > 1 && !s.conn.Cluster() && !slices.ContainsFunc(attempts, (*Attempt).Owes)
}

// evalParts runs a script by one command for each part. If the server does not know the script,
// evalParts sends it again in full. Nothing was done then, so the token is not sent twice.
func (s *Store) evalParts(
	ctx context.Context, parts [][]*Attempt, sc conn.Script, r scriptCall,
	reply func(part []*Attempt, v any, err error),
) {
	eval := func(name, body string, parts [][]*Attempt) (unknown [][]*Attempt) {
		scripts := make([]*redis.Cmd, len(parts))
		for i, part := range parts {
			scripts[i] = redis.NewCmd(ctx, s.evalArgs(name, body, part, sc.Wide == nil, r)...)
		}
		weight := int64(0)
		if r.first != nil {
			for _, part := range parts {
				weight += r.first.Total(len(part))
			}
		}
		s.sendWeighed(ctx, scripts, s.batchersOf(r), weight, func(i int, v any, err error) {
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

// evalArgs returns the arguments of the command for one part, which is a single attempt unless
// wide is true.
func (s *Store) evalArgs(name, body string, part []*Attempt, wide bool, r scriptCall) []any {
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
		if !wide {
			cmd = r.args(cmd, a)
			continue
		}
		count := len(cmd)
		cmd = r.args(append(cmd, nil), a)
		cmd[count] = len(cmd) - count - 1
	}
	return cmd
}

// splitReply passes each attempt its part of the reply to a wide script. It returns the attempts
// for which the script must be repeated.
func splitReply(part []*Attempt, v any, err error, r scriptCall) (again []*Attempt) {
	replies, _ := v.([]any)
	switch {
	case err == nil && len(replies) == len(part):
		for i, a := range part {
			if replies[i] == nil {
				r.reply(a, nil, redis.Nil) // as the client reports no value
			} else {
				r.reply(a, replies[i], nil)
			}
		}
		return nil
	case err == nil:
		err = partialError{errors.New("unexpected reply to a script for many keys")}
	case conn.IsReply(err) && !r.once:
		return part
	case conn.IsReply(err):
		err = partialError{err} // the script may have granted leases before it failed
	}
	for _, a := range part {
		r.reply(a, nil, err)
	}
	return nil
}

// A partialError is the error reply of Redis to a wide script. It leaves open for which keys the
// script was carried out, so it is not a refusal.
type partialError struct{ reply error }

func (p partialError) Error() string { return fmt.Sprint("a script for many keys: ", p.reply) }

// batchersOf returns the batchers that send a script.
func (s *Store) batchersOf(r scriptCall) *batchers {
	switch {
	case r.first != nil:
		return &s.firsts
	case r.once:
		return &s.requests
	default:
		return &s.changes
	}
}

// send sends scripts with short replies in one trip. Those of all batchers but changes are sent
// once.
func (s *Store) send(ctx context.Context, scripts []*redis.Cmd, to *batchers, reply func(i int, v any, err error)) {
	s.sendWeighed(ctx, scripts, to, 0, reply)
}

// sendWeighed is send for scripts whose replies have about weight bytes together.
func (s *Store) sendWeighed(
	ctx context.Context, scripts []*redis.Cmd, to *batchers, weight int64, reply func(i int, v any, err error),
) {
	cmds := make([]redis.Cmder, len(scripts))
	for i, sc := range scripts {
		cmds[i] = sc
		if to != &s.changes {
			cmds[i] = conn.Once(sc)
		}
	}
	if len(cmds) == 0 {
		return
	}
	sent := to.forCommands(cmds).send(ctx, weight, cmds)
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
