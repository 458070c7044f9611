package invalidation

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
)

// maxPolled is the maximum number of loaders in one request. Each has two arguments, and some
// servers accept no more than 3,999.
const maxPolled = 1000

// A pollRequest polls one range for at most maxPolled loaders. A complete request runs pollScript.
// Others only read what the script would return, which takes half of the server's time. If their
// reply lacks something, the script decides.
//
// In the same trip, the request first reads the invalidations of groups. The command that follows
// writes, so the server was not a replica when it returned them.
type pollRequest struct {
	rng   int
	names []string         // of the loaders
	logs  []*groups.Loader // of the loaders; nil: this process has none
	renew bool             // renew the sets of the loaders' groups
	full  bool             // run the script; sendPolls sets it if the script had to decide

	news   []*groupNews // of the loaders; nil: this process does not use groups of the loader
	groups []redis.Cmder
	read   *redis.SliceCmd
	write  *redis.BoolCmd
	script *redis.Cmd

	reply pollReply
	err   error
}

// pollReply is the reply of Redis to a pollRequest.
type pollReply struct {
	now, last   uint64 // now is 0 if the request was not complete
	generations []uint64
	grouped     []bool // whether a program uses or invalidates groups of the loader
}

// pollRequests returns the requests that poll a range.
func (b *Bus) pollRequests(rng int, renew, full bool) (all []*pollRequest) {
	names, logs := b.loaders.all()
	for from := 0; from == 0 || from < len(names); from += maxPolled {
		to := min(from+maxPolled, len(names))
		all = append(all, &pollRequest{rng: rng, names: names[from:to], logs: logs[from:to], renew: renew, full: full})
	}
	return all
}

// sendPolls sends requests in one trip, and sets their replies or errors. A second trip follows if
// the server does not know the script, or if the reply to a request lacks something.
func (b *Bus) sendPolls(requests []*pollRequest) {
	ctx, cancel := context.WithTimeout(b.ctx, b.conn.Timeout())
	defer cancel()
	returned := false
	err := b.conn.Await(ctx, func(ctx context.Context) {
		var cmds, again []redis.Cmder
		for _, r := range requests {
			cmds = append(cmds, r.commands(ctx, b)...)
		}
		b.conn.Process(ctx, cmds)
		for _, r := range requests {
			if r.incomplete() {
				r.script = r.eval(ctx, b, "eval", pollScript.Source)
				again = append(again, r.script)
			}
		}
		if len(again) > 0 {
			b.conn.Process(ctx, again)
		}
		returned = true
	})
	if err == nil && !returned {
		err = conn.NotReturned(nil)
	}
	var all sync.WaitGroup
	for _, r := range requests {
		if r.err = err; err == nil { // otherwise the commands may still be in use
			all.Go(func() { r.err = r.apply(ctx, b) })
		}
	}
	all.Wait()
}

// commands returns the commands of the first trip.
func (r *pollRequest) commands(ctx context.Context, b *Bus) (cmds []redis.Cmder) {
	r.news = make([]*groupNews, len(r.names))
	for i, name := range r.names {
		if r.logs[i] == nil || !r.logs[i].InUse() {
			continue
		}
		r.news[i] = b.readGroupsCommand(ctx, r.rng, name, r.logs[i])
		cmds = append(cmds, r.news[i].cmd)
		if r.renew { // if this fails, the set is created again when it has expired
			key := b.groupsKey(r.rng, name)
			cmds = append(cmds, redis.NewBoolCmd(ctx, "pexpire", key, groupsLife.Milliseconds()))
		}
	}
	if r.full {
		r.script = r.eval(ctx, b, "evalsha", pollScript.Hash)
		return append(cmds, r.script)
	}
	args := []any{"hmget", b.keys[r.rng], ""}
	for _, name := range r.names {
		args = append(args, name, name+":groups")
	}
	r.read = redis.NewSliceCmd(ctx, args...)
	r.write = redis.NewBoolCmd(ctx, "persist", b.keys[r.rng])
	return append(cmds, r.read, r.write)
}

// eval returns the command that runs the script.
func (r *pollRequest) eval(ctx context.Context, b *Bus, name, body string) *redis.Cmd {
	args := make([]any, 0, 2*len(r.names))
	for i, loader := range r.names {
		args = append(args, loader, digit(r.news[i] != nil))
	}
	return script(ctx, name, body, b.keys[r.rng], args)
}

// incomplete reports whether the source of the script has to be sent after the first trip.
func (r *pollRequest) incomplete() bool {
	if r.full {
		return conn.Unknown(r.script)
	}
	err := r.read.Err()
	r.full = conn.IsReply(err) || err == nil && !r.setReply()
	return r.full
}

// setReply sets the reply from that of the command that reads. It reports whether it was complete.
func (r *pollRequest) setReply() bool {
	values := r.read.Val()
	if len(values) != 1+2*len(r.names) {
		return false
	}
	r.reply = pollReply{last: fieldNumber(values[0])}
	for i := range r.names {
		generation, grouped := fieldNumber(values[1+2*i]), values[2+2*i] != nil
		if generation == 0 || r.news[i] != nil && !grouped {
			return false
		}
		r.reply.generations = append(r.reply.generations, generation)
		r.reply.grouped = append(r.reply.grouped, grouped)
	}
	return r.reply.last != 0
}

// fieldNumber returns the number in a field, or 0 if only the script can decide what it is.
func fieldNumber(value any) uint64 {
	digits, _ := value.(string)
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > 1<<52 { // see clock
		return 0
	}
	return n
}

// apply applies what the request has read of groups, after it has set the reply.
func (r *pollRequest) apply(ctx context.Context, b *Bus) (err error) {
	if r.full {
		r.reply, err = scriptReply(r.script, len(r.names))
	} else if err = r.read.Err(); err == nil {
		err = r.write.Err()
	}
	for i, name := range r.names {
		if err != nil {
			break
		}
		switch log := r.logs[i]; {
		case r.news[i] != nil:
			log.Discover() // waits for another goroutine that is making the discovery
			err = b.applyGroups(ctx, r.rng, r.reply.now, name, log, r.news[i])
		case r.reply.grouped[i] && log != nil:
			log.Discover()
			err = b.ReadGroups(ctx, r.rng, name)
		}
	}
	return err
}

// scriptReply returns the reply of the script for n loaders.
func scriptReply(cmd *redis.Cmd, n int) (r pollReply, err error) {
	parts, err := cmd.StringSlice()
	if err != nil {
		return r, err
	}
	if len(parts) != 2*n+2 {
		return r, fmt.Errorf("the reply to a poll has %d parts instead of %d", len(parts), 2*n+2)
	}
	numbers := make([]uint64, len(parts))
	for i, digits := range parts {
		if numbers[i], err = parseNumber(digits); err != nil {
			return r, errors.New("the reply to a poll is not a number")
		}
	}
	r.now, r.last = numbers[0], numbers[1]
	for i := range n {
		r.generations = append(r.generations, numbers[2+2*i])
		r.grouped = append(r.grouped, numbers[3+2*i] != 0)
	}
	return r, nil
}
