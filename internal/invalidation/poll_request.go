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

// A pollRequest is a poll of one range. Its trip reads the invalidations of groups first. The
// command that follows writes, so the server was not a replica when it returned them.
//
// A poll is complete about once in a bound. Then pollScript answers it. The polls in between only
// read what the script would return, because that takes half of the time of the server. If the
// reply lacks something, the script decides.
type pollRequest struct {
	rng   int
	names []string         // of the loaders
	logs  []*groups.Loader // of the loaders; nil: this process has none
	renew bool             // renew the sets of the loaders' groups
	full  bool             // run the script; sendPolls sets it if it had to

	before  []redis.Cmder // those of news that are not nil, and the renewals
	news    []*groupNews  // of the loaders; nil: this process does not use groups of the loader
	reads   []*redis.SliceCmd
	writes  *redis.BoolCmd
	scripts []*redis.Cmd

	reply   pollReply
	grouped []bool // of the loaders: a program uses or invalidates groups
	err     error
}

// pollReply is the reply of Redis to a poll.
type pollReply struct {
	now, last   uint64 // now is only set if the poll was complete
	generations []uint64
}

// maxPolled is the maximum number of loaders in one command of a poll. Each has two arguments, and
// some servers accept no more than 3,999.
const maxPolled = 1000

// sendPolls sends polls in one trip, and sets their replies or errors. A second trip follows if the
// server does not know the script, or if an incomplete poll lacks something.
func (b *Bus) sendPolls(requests []*pollRequest) {
	ctx, cancel := context.WithTimeout(b.ctx, b.conn.Timeout())
	defer cancel()
	for _, r := range requests {
		r.prepare(ctx, b)
		r.err = conn.NotReturned(nil)
	}
	returned := false
	err := b.conn.Await(ctx, func(ctx context.Context) {
		var first, second []redis.Cmder
		for _, r := range requests {
			first = append(first, r.first(ctx, b)...)
		}
		b.conn.Process(ctx, first)
		for _, r := range requests {
			second = append(second, r.second(ctx, b)...)
		}
		if len(second) > 0 {
			b.conn.Process(ctx, second)
		}
		returned = true
	})
	var reads sync.WaitGroup
	for _, r := range requests {
		switch {
		case err != nil:
			r.err = err // the commands may still be in use
		case returned:
			reads.Go(func() { r.err = r.read(ctx, b) })
		}
	}
	reads.Wait()
}

// part returns the loaders of the part i of a request.
func (r *pollRequest) part(i int) (from, to int) {
	return i * maxPolled, min((i+1)*maxPolled, len(r.names))
}

// parts returns the number of parts.
func (r *pollRequest) parts() int { return max((len(r.names)+maxPolled-1)/maxPolled, 1) }

// prepare makes the commands that read and renew groups.
func (r *pollRequest) prepare(ctx context.Context, b *Bus) {
	r.news = make([]*groupNews, len(r.names))
	for i, name := range r.names {
		if r.logs[i] == nil || !r.logs[i].InUse() {
			continue
		}
		r.news[i] = b.readGroupsCommand(ctx, r.rng, name, r.logs[i])
		r.before = append(r.before, r.news[i].cmd)
		if r.renew { // if this fails, the set is created again when it has expired
			r.before = append(r.before,
				redis.NewBoolCmd(ctx, "pexpire", b.groupsKey(r.rng, name), groupsLife.Milliseconds()))
		}
	}
}

// first returns the commands of the first trip.
func (r *pollRequest) first(ctx context.Context, b *Bus) []redis.Cmder {
	cmds := r.before
	r.full = r.full || b.noReads.Load()
	if r.full {
		return append(cmds, r.evals(ctx, b, "evalsha", pollScript.Hash)...)
	}
	for i := range r.parts() {
		from, to := r.part(i)
		args := []any{"hmget", b.keys[r.rng], ""}
		for _, name := range r.names[from:to] {
			args = append(args, name, name+":groups")
		}
		r.reads = append(r.reads, redis.NewSliceCmd(ctx, args...))
		cmds = append(cmds, r.reads[i])
	}
	r.writes = redis.NewBoolCmd(ctx, "persist", b.keys[r.rng])
	return append(cmds, r.writes)
}

// second returns the commands of the second trip, if there is one.
func (r *pollRequest) second(ctx context.Context, b *Bus) (cmds []redis.Cmder) {
	if r.full {
		for _, cmd := range r.scripts {
			if conn.Unknown(cmd) {
				return r.evals(ctx, b, "eval", pollScript.Source)
			}
		}
		return nil
	}
	r.err = r.readReplies()
	switch {
	case redis.HasErrorPrefix(r.err, "NOPERM"):
		b.noReads.Store(true) // the user has the permissions that an older release needed
	case r.err == nil, !conn.IsReply(r.err) && !errors.Is(r.err, errIncomplete):
		return nil
	}
	r.full = true
	return r.evals(ctx, b, "eval", pollScript.Source)
}

// evals returns the commands that run the script, and sets scripts.
func (r *pollRequest) evals(ctx context.Context, b *Bus, name, body string) (cmds []redis.Cmder) {
	r.scripts = nil
	for i := range r.parts() {
		from, to := r.part(i)
		args := make([]any, 0, 2*(to-from))
		for j := from; j < to; j++ {
			args = append(args, r.names[j], digit(r.news[j] != nil))
		}
		cmd := script(ctx, name, body, b.keys[r.rng], args)
		r.scripts = append(r.scripts, cmd)
		cmds = append(cmds, cmd)
	}
	return cmds
}

// read sets the reply, and applies what the poll has read of groups.
func (r *pollRequest) read(ctx context.Context, b *Bus) error {
	if r.full {
		r.err = r.scriptReplies()
	}
	err := r.err
	for i, name := range r.names {
		if err != nil {
			break
		}
		switch log := r.logs[i]; {
		case r.news[i] != nil:
			log.Discover() // waits for another goroutine that is making the discovery
			err = b.applyGroups(ctx, r.rng, r.reply.now, name, log, r.news[i])
		case r.grouped[i] && log != nil:
			log.Discover()
			err = b.ReadGroups(ctx, r.rng, name)
		}
	}
	return err
}

// errIncomplete is the error of a reply that lacks what the script would set.
var errIncomplete = errors.New("the reply to a poll is incomplete")

// readReplies sets the reply from that of the commands that only read.
func (r *pollRequest) readReplies() error {
	for i, cmd := range r.reads {
		values, err := cmd.Result()
		if err != nil {
			return err
		}
		from, to := r.part(i)
		if len(values) != 1+2*(to-from) {
			return errIncomplete
		}
		if i == 0 {
			r.reply.last = fieldNumber(values[0])
		}
		for j := from; j < to; j++ {
			generation, grouped := fieldNumber(values[1+2*(j-from)]), values[2+2*(j-from)] != nil
			if generation == 0 || r.news[j] != nil && !grouped {
				return errIncomplete
			}
			r.add(generation, grouped)
		}
	}
	if r.reply.last == 0 {
		return errIncomplete
	}
	return r.writes.Err()
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

func (r *pollRequest) add(generation uint64, grouped bool) {
	r.reply.generations = append(r.reply.generations, generation)
	r.grouped = append(r.grouped, grouped)
}

// scriptReplies sets the reply from those of the script.
func (r *pollRequest) scriptReplies() error {
	r.reply, r.grouped = pollReply{}, nil
	for i, cmd := range r.scripts {
		from, to := r.part(i)
		numbers, err := pollNumbers(cmd, to-from)
		if err != nil {
			return err
		}
		if i == 0 {
			r.reply.now, r.reply.last = numbers[0], numbers[1]
		}
		for numbers = numbers[2:]; len(numbers) > 0; numbers = numbers[2:] {
			r.add(numbers[0], numbers[1] != 0)
		}
	}
	return nil
}

// pollNumbers returns the numbers in the reply to a poll of n loaders.
func pollNumbers(cmd *redis.Cmd, n int) ([]uint64, error) {
	reply, err := cmd.StringSlice()
	if err != nil {
		return nil, err
	}
	if len(reply) != 2*n+2 {
		return nil, fmt.Errorf("the reply to a poll has %d parts instead of %d", len(reply), 2*n+2)
	}
	numbers := make([]uint64, len(reply))
	for i, digits := range reply {
		if numbers[i], err = parseNumber(digits); err != nil {
			return nil, errors.New("the reply to a poll is not a number")
		}
	}
	return numbers, nil
}
