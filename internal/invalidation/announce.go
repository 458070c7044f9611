package invalidation

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// maxTimeouts is the number of command time-outs that an invalidation may take.
const maxTimeouts = 4

// operation names the failed operation in errors.
const operation = "an invalidation"

// A Change returns the command that changes the key of this name in Redis. The command may be
// sent again.
type Change func(ctx context.Context, name string) redis.Cmder

func del(ctx context.Context, name string) redis.Cmder { return redis.NewIntCmd(ctx, "del", name) }

// Do is like Delete with change instead of the delete, and without a hold. If change is nil, the
// keys have already been changed, and Do only announces them.
func (b *Bus) Do(ctx context.Context, names []string, hashes []uint64, change Change) []error {
	errs, _ := b.do(ctx, names, hashes, job{change: change})
	return errs
}

// job describes the work on keys: each key is put on hold under holder, if hold is not 0, and then
// changed and announced. Then the holds under tokens are released.
type job struct {
	holder string
	hold   time.Duration // the duration of the hold; 0: no hold
	change Change
	tokens []string // for each key, the token whose hold is released; nil: none
	once   bool     // holds and changes must not be sent again
}

// do returns an error per key, nil if Redis has acknowledged the change and its announcement. It
// also returns the parts, except those that an abandoned goroutine may still use.
func (b *Bus) do(ctx context.Context, names []string, hashes []uint64, work job) ([]error, []*part) {
	errs := make([]error, len(names))
	if len(names) == 0 {
		return errs, nil
	}
	began := time.Now()
	parts := b.parts(ctx, names, hashes, work)
	if len(parts) == 1 {
		_ = b.finish(ctx, parts[0]) // the part has its error
	} else {
		b.sendAll(ctx, parts)
	}
	for _, p := range parts {
		if p.err == nil {
			b.reportRefused(ctx, p)
			if p.announced == nil {
				b.collect(ctx, p.rng, 0, p.number)
			}
		}
		for i, position := range p.positions {
			if errs[position] = p.err; p.err == nil {
				errs[position] = cmp.Or(p.keyErr(i), p.announced)
			}
			if errs[position] != nil {
				errs[position] = b.conn.Explain(ctx, errs[position], operation, p.names[i], began)
				b.Disown() // Redis may still execute it
			} else {
				b.conn.Acknowledged(p.names[i])
				b.loadEnded(hashes[position])
			}
		}
	}
	return errs, slices.DeleteFunc(parts, func(p *part) bool { return p.err != nil })
}

// maxParts is the maximum number of parts of one call that are in progress on a single server. On a
// cluster it is one for each range of slots. All parts at once would take the connections of the
// client and the time of the server from readers.
const maxParts = 4

// sendAll sends parts, a few at a time. If the server does not reply to one, sendAll fails the
// parts of its range that have not been sent: a server that is down takes the time of a few parts.
func (b *Bus) sendAll(ctx context.Context, parts []*part) {
	var byRange [conn.Ranges][]*part
	for _, p := range parts {
		byRange[p.rng] = append(byRange[p.rng], p)
	}
	workers := maxParts
	if b.conn.Cluster() {
		workers = 1
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, parts := range byRange {
		queue := make(chan *part, len(parts))
		for _, p := range parts {
			queue <- p
		}
		close(queue)
		var failed atomic.Pointer[error]
		for range min(workers, len(parts)) {
			all.Go(func() {
				for p := range queue {
					if err := failed.Load(); err != nil {
						p.err = *err
					} else if err := b.finish(ctx, p); err != nil {
						failed.Store(&err)
					}
				}
			})
		}
	}
}

// finish sends a part. It returns an error if the server has not replied.
func (b *Bus) finish(ctx context.Context, p *part) error {
	ctx, cancel := conn.WithTimeout(ctx, maxTimeouts*b.conn.Timeout())
	defer cancel()
	// The caller's context may end before the client's time-outs do.
	p.err = b.conn.Finish(ctx, func(ctx context.Context) { b.send(ctx, p) })
	if p.err != nil {
		return p.err
	}
	for i := range p.names {
		if err := cmp.Or(p.keyErr(i), p.announced); err != nil && !conn.IsReply(err) {
			return err
		}
	}
	return nil
}

// reportRefused reports a refusal by Redis. One trip is one refusal, regardless of its number of
// commands.
func (b *Bus) reportRefused(ctx context.Context, p *part) {
	noted := b.conn.Refused(ctx, b.keys[p.rng], p.announced)
	for i := 0; i < len(p.names) && !noted; i++ {
		noted = b.conn.Refused(ctx, p.names[i], p.keyErr(i))
	}
}

// part contains the keys of one range that fit into one pipeline.
type part struct {
	job       // its tokens are only those of the keys of this part
	rng       int
	names     []string
	positions []int // positions of the keys among all
	body      []byte
	holds     []redis.Cmder // nil: none
	dels      []redis.Cmder
	releases  []redis.Cmder // nil: none
	announced error
	number    uint64 // of the announcement, if announced is nil
	err       error  // not nil: the part was not sent, or an abandoned goroutine may still use it
}

// parts groups keys by range.
func (b *Bus) parts(ctx context.Context, names []string, hashes []uint64, work job) []*part {
	var parts []*part
	var open [conn.Ranges]*part
	for i, name := range names {
		r := b.conn.Range(name)
		p := open[r]
		if p == nil || len(p.positions) >= conn.MaxPipeline-1 {
			p = &part{rng: r, job: work, body: []byte{keysKind}}
			p.tokens = nil
			open[r], parts = p, append(parts, p)
		}
		p.names, p.positions = append(p.names, name), append(p.positions, i)
		p.body = binary.BigEndian.AppendUint64(p.body, hashes[i])
		if work.tokens != nil {
			p.tokens = append(p.tokens, work.tokens[i])
		}
	}
	for _, p := range parts {
		p.prepare(ctx, false)
	}
	return parts
}

// prepare creates the commands of a part. If full is true, each hold command contains the whole
// script, because the keys may be on several servers.
func (p *part) prepare(ctx context.Context, full bool) {
	p.holds, p.releases = nil, nil
	if p.hold > 0 {
		p.holds = holdCommands(ctx, holdScript, p.names, full,
			func(int) []any { return []any{p.holder, p.hold.Milliseconds()} })
	}
	for i, hold := range p.holds {
		if p.once {
			p.holds[i] = conn.Once(hold.(*redis.Cmd))
		}
	}
	if p.tokens != nil {
		p.releases = holdCommands(ctx, releaseScript, p.names, false, func(i int) []any { return []any{p.tokens[i]} })
		conn.Fail(p.releases, errNotReleased) // until they have been sent
	}
	p.announced = conn.NotReturned(nil) // until it has
	if p.change == nil {
		return
	}
	p.dels = make([]redis.Cmder, len(p.names))
	for i, name := range p.names {
		p.dels[i] = p.change(ctx, name)
	}
}

var errNotReleased = errors.New("not released")

// holdCommands returns a command per key that runs a script on its hold. The first contains the
// script's source, which loads it into the server for the others. If full is true, all contain it,
// for keys on several servers.
func holdCommands(ctx context.Context, s conn.Script, names []string, full bool, args func(i int) []any) []redis.Cmder {
	cmds := make([]redis.Cmder, len(names))
	for i, name := range names {
		if i == 0 || full {
			cmds[i] = script(ctx, "eval", s.Source, keys.Hold(name), args(i))
		} else {
			cmds[i] = script(ctx, "evalsha", s.Hash, keys.Hold(name), args(i))
		}
	}
	return cmds
}

// keyErr returns the error of putting key i of the part on hold or changing it.
func (p *part) keyErr(i int) error {
	if p.holds != nil && p.holds[i].Err() != nil {
		return p.holds[i].Err()
	}
	if p.change == nil {
		return nil
	}
	return p.dels[i].Err()
}

// send executes the job and announces it. If all keys are on the server that has the range's
// number, which is normal, one pipeline does both. On a cluster, a command may fail because a key
// has moved, and then the announcement may have come first. So if any command fails there, send
// repeats the steps one after the other, unless they must not be sent again. On a single server
// only the Redis client retries.
func (b *Bus) send(ctx context.Context, p *part) {
	if !b.sendPipelined(ctx, p) && ctx.Err() == nil && !p.mayStillRun() {
		p.prepare(ctx, true)
		b.conn.Process(ctx, p.holds)
		b.conn.Process(ctx, p.dels)
		p.number, p.announced = b.announce(ctx, p.rng, p.body, "")
	}
	b.releaseHolds(ctx, p)
}

// mayStillRun reports whether Redis may still execute a command that must not be sent again.
func (p *part) mayStillRun() bool {
	return p.once && slices.ContainsFunc(slices.Concat(p.holds, p.dels), func(cmd redis.Cmder) bool {
		return cmd.Err() != nil && !conn.IsReply(cmd.Err())
	})
}

// releaseHolds releases the holds that the pipeline has not released, of the keys that were
// changed.
func (b *Bus) releaseHolds(ctx context.Context, p *part) {
	var unsent []redis.Cmder
	for i, cmd := range p.releases {
		if p.keyErr(i) == nil && errors.Is(cmd.Err(), errNotReleased) {
			p.releases[i] = holdCommands(ctx, releaseScript, p.names[i:i+1], true,
				func(int) []any { return []any{p.tokens[i]} })[0]
			unsent = append(unsent, p.releases[i])
		}
	}
	if len(unsent) > 0 {
		b.conn.Process(ctx, unsent)
	}
}

// sendPipelined tries to send everything in one pipeline. It returns false if send must execute
// the steps, or repeat them.
func (b *Bus) sendPipelined(ctx context.Context, p *part) bool {
	if b.conn.Cluster() {
		home := b.conn.Node(ctx, b.keys[p.rng])
		for _, name := range p.names {
			if home == nil || b.conn.Node(ctx, name) != home {
				return false
			}
		}
	}
	announcement := script(ctx, "evalsha", announceScript.Hash, b.keys[p.rng], b.announcement(p.rng, p.body, ""))
	cmds := slices.Concat(p.holds, p.dels, []redis.Cmder{announcement})
	if !b.conn.Cluster() { // on a cluster, a hold could be released although its key was not changed: see releaseHolds
		cmds = append(cmds, p.releases...)
	}
	if !b.conn.ProcessAt(ctx, b.keys[p.rng], cmds) {
		return false
	}
	p.announced = announcement.Err()
	switch {
	case p.announced == nil:
		b.counts.announced.Add(1)
		p.number, p.announced = b.gathered(p.rng, announcement)
	case conn.Unknown(announcement):
		p.number, p.announced = b.announce(ctx, p.rng, p.body, "")
	}
	if !b.conn.Cluster() {
		return true // the client has retried according to its options
	}
	for i := range p.dels {
		if p.keyErr(i) != nil {
			return false
		}
	}
	return p.announced == nil
}

// announce numbers and publishes a message, and returns its number. The client may repeat it.
func (b *Bus) announce(ctx context.Context, rng int, body []byte, loader string) (uint64, error) {
	cmd := b.eval(ctx, announceScript, b.keys[rng], b.announcement(rng, body, loader)...)
	if cmd.Err() != nil {
		return 0, cmd.Err()
	}
	b.counts.announced.Add(1)
	return b.gathered(rng, cmd)
}

// gathered returns the number in the reply of announceScript or announceGroupsScript. If the
// announcement was gathered, and is the first one, gathered delivers it when its time has come.
func (b *Bus) gathered(rng int, cmd *redis.Cmd) (uint64, error) {
	reply, err := cmd.Text()
	if err != nil {
		return 0, err
	}
	digits, wait, first := strings.Cut(reply, " ")
	if first {
		micros, err := parseNumber(wait)
		if err != nil {
			return 0, err
		}
		b.deliverAfter(rng, time.Duration(micros)*time.Microsecond)
	}
	return parseNumber(digits)
}

// deliverAfter delivers the gathered announcements of a range after wait, unless another process
// has done so. If it fails, the next announcement delivers them. It is called at most once for each
// message: by the process whose announcement was the first to be gathered since the last one.
func (b *Bus) deliverAfter(rng int, wait time.Duration) {
	b.conn.Apart(func() {
		timer := time.NewTimer(min(wait, time.Second))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-b.ctx.Done():
		}
		ctx, cancel := context.WithTimeout(context.Background(), b.conn.Timeout())
		defer cancel()
		closing := digit(b.ctx.Err() != nil)
		cmd := b.eval(ctx, deliverScript, b.keys[rng], b.topic, appendHead(nil, rng, 0), closing)
		if err := cmd.Err(); err != nil {
			b.report("gathered invalidations could not be delivered: the next one delivers them, or processes "+
				"find with their polls that they are missing", err)
		}
	})
}

func (b *Bus) announcement(rng int, body []byte, loader string) []any {
	return []any{b.topic, appendHead(nil, rng, b.origin.Load()), body, loader, 1 + rand.N(1000)}
}

// DeleteLoader outdates all entries of a loader by raising its generation in each range. It ends
// with ctx, and times out after maxTimeouts command time-outs.
func (b *Bus) DeleteLoader(ctx context.Context, name string) error {
	caller, began := ctx, time.Now()
	ctx, cancel := context.WithTimeout(ctx, maxTimeouts*b.conn.Timeout())
	defer cancel()
	ranges := b.conn.InUse()
	errs, numbers := make([]error, ranges), make([]uint64, ranges)
	err := b.conn.Await(ctx, func(ctx context.Context) {
		var all sync.WaitGroup
		for r := range ranges {
			errs[r] = conn.NotReturned(nil) // until it has
			all.Go(func() {
				n, err := b.announce(ctx, r, appendLoader(nil, name), name)
				if numbers[r], errs[r] = n, err; err != nil {
					b.conn.Refused(caller, b.keys[r], err)
				} else if b.loaders.announced(name, r, n) {
					b.pollers[r].unconfirm()
				}
			})
		}
		all.Wait()
	})
	if err != nil {
		return b.conn.Explain(caller, err, operation, b.keys[0], began)
	}
	for r, err := range errs {
		if err != nil {
			return b.conn.Explain(caller, err, operation, b.keys[r], began)
		}
		b.collect(caller, r, loaderBit, numbers[r])
	}
	return nil
}
