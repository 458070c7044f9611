package invalidation

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// tries is how many time-outs an invalidation may take.
const tries = 4

// invalidation is what errors say was asked for.
const invalidation = "an invalidation"

// Change makes the command that changes a key, by its name in Redis; it may be sent again.
type Change func(ctx context.Context, name string) redis.Cmder

func del(ctx context.Context, name string) redis.Cmder { return redis.NewIntCmd(ctx, "del", name) }

// Delete deletes keys, by their names in Redis, and so voids every lease and claim on them; then it
// announces their stable hashes. It returns an error for each key, nil where Redis has acknowledged
// both. It ends with ctx, and has a time-out of a few tries if ctx has none.
//
// Both go in one trip to each server that has keys. The announcement must not come first: a reader
// that hears it would fill its memory again with what is about to be deleted.
func (b *Bus) Delete(ctx context.Context, names []string, hashes []uint64) []error {
	errs, _ := b.do(ctx, names, hashes, job{holder: lagHolder, hold: b.lag, change: del})
	return errs
}

// Do is Delete with another change than that, and without a hold. With none, a nil one, it
// announces what has been changed already.
func (b *Bus) Do(ctx context.Context, names []string, hashes []uint64, change Change) []error {
	errs, _ := b.do(ctx, names, hashes, job{change: change})
	return errs
}

// job is what is to be done with keys: each is put on hold, if it is to be, then changed, and when
// that has been announced its holder leaves it.
type job struct {
	holder string
	hold   time.Duration // 0: it is not
	change Change
	leaves []string // the holder of each key; nil: nobody leaves
	once   bool     // holds and changes must not be sent again
}

// do returns an error for each key, nil where Redis has acknowledged the change and its
// announcement; and the parts, but if they may be in use still.
func (b *Bus) do(ctx context.Context, names []string, hashes []uint64, o job) ([]error, []*part) {
	errs := make([]error, len(names))
	if len(names) == 0 {
		return errs, nil
	}
	caller, began := ctx, time.Now()
	ctx, cancel := conn.WithTimeout(ctx, tries*b.conn.Timeout())
	defer cancel()
	parts := b.parts(ctx, names, hashes, o)               // which a goroutine that was given up may go on reading
	err := b.conn.Finish(ctx, func(ctx context.Context) { // the caller's context may end before the client's time-outs do
		var all sync.WaitGroup
		defer all.Wait() // also if a hook ends the goroutine
		for _, p := range parts[1:] {
			all.Go(func() { b.send(ctx, p) })
		}
		b.send(ctx, parts[0])
	})
	if err != nil {
		b.Disown() // it may yet come about
		for i, name := range names {
			errs[i] = b.conn.Explain(caller, err, invalidation, name, began)
		}
		return errs, nil
	}
	for _, p := range parts {
		b.refused(caller, p)
		for i, at := range p.at {
			if errs[at] = p.failed(i); errs[at] == nil {
				errs[at] = p.announced
			}
			if errs[at] != nil {
				errs[at] = b.conn.Explain(caller, errs[at], invalidation, p.names[i], began)
				b.Disown()
			} else {
				b.conn.Acknowledged(p.names[i])
			}
		}
	}
	return errs, parts
}

// refused notes that a part was refused. One trip is one refusal, however many commands it has.
func (b *Bus) refused(ctx context.Context, p *part) {
	noted := b.conn.Refused(ctx, b.keys[p.rng], p.announced)
	for i := 0; i < len(p.names) && !noted; i++ {
		noted = b.conn.Refused(ctx, p.names[i], p.failed(i))
	}
}

// part is the keys of one range, as many as fit into one pipeline.
type part struct {
	job       // its leaves are of these keys
	rng       int
	names     []string
	at        []int // where they are among all
	body      []byte
	holds     []redis.Cmder // nil: there are none
	dels      []redis.Cmder
	left      []redis.Cmder // nil: there are none
	announced error
}

// parts divides keys among the ranges.
func (b *Bus) parts(ctx context.Context, names []string, hashes []uint64, o job) []*part {
	var parts []*part
	var open [conn.Ranges]*part
	for i, name := range names {
		r := b.conn.Range(name)
		p := open[r]
		if p == nil || len(p.at) >= conn.MaxPipeline-1 {
			p = &part{rng: r, job: o, body: []byte{keysKind}}
			p.leaves = nil
			open[r], parts = p, append(parts, p)
		}
		p.names, p.at = append(p.names, name), append(p.at, i)
		p.body = binary.BigEndian.AppendUint64(p.body, hashes[i])
		if o.leaves != nil {
			p.leaves = append(p.leaves, o.leaves[i])
		}
	}
	for _, p := range parts {
		p.prepare(ctx, false)
	}
	return parts
}

// prepare makes the commands of a part. With full its holds can be on several servers.
func (p *part) prepare(ctx context.Context, full bool) {
	p.holds, p.left = nil, nil
	if p.hold > 0 {
		p.holds = onHolds(ctx, holdScript, p.names, full, func(int) []any { return []any{p.holder, p.hold.Milliseconds()} })
	}
	for i, hold := range p.holds {
		if p.once {
			p.holds[i] = conn.Once(hold.(*redis.Cmd))
		}
	}
	if p.leaves != nil {
		p.left = onHolds(ctx, leaveScript, p.names, false, func(i int) []any { return []any{p.leaves[i]} })
		conn.Fail(p.left, errNotLeft) // until they are
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

var errNotLeft = errors.New("not left yet")

// onHolds returns a command for each key that runs a script on its hold. The first has the script
// in full, by which the server knows it for the others. With full all have, for several servers.
func onHolds(ctx context.Context, s conn.Script, names []string, full bool, args func(i int) []any) []redis.Cmder {
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

// failed is why a key of a part was not put on hold or deleted.
func (p *part) failed(i int) error {
	if p.holds != nil && p.holds[i].Err() != nil {
		return p.holds[i].Err()
	}
	if p.change == nil {
		return nil
	}
	return p.dels[i].Err()
}

// send does what is ordered, and announces; in one trip if all keys are at the server that numbers
// their announcements, as nearly always. If anything is wrong, or on a cluster a key has moved
// meanwhile, so that the announcement might have come first, it does it again one after the other:
// what may be repeated.
func (b *Bus) send(ctx context.Context, p *part) {
	if !b.together(ctx, p) && ctx.Err() == nil && !p.unanswered() {
		p.prepare(ctx, true)
		b.conn.Process(ctx, p.holds)
		b.conn.Process(ctx, p.dels)
		_, p.announced = b.announce(ctx, p.rng, p.body, "")
	}
	b.leave(ctx, p)
}

// unanswered tells whether something that must not be sent again may yet be carried out.
func (p *part) unanswered() bool {
	return p.once && slices.ContainsFunc(slices.Concat(p.holds, p.dels), func(cmd redis.Cmder) bool {
		return cmd.Err() != nil && !conn.IsReply(cmd.Err())
	})
}

// leave ends the holds that are to be ended, of keys that have been changed.
func (b *Bus) leave(ctx context.Context, p *part) {
	var unsent []redis.Cmder
	for i, cmd := range p.left {
		if p.failed(i) == nil && errors.Is(cmd.Err(), errNotLeft) {
			p.left[i] = onHolds(ctx, leaveScript, p.names[i:i+1], true, func(int) []any { return []any{p.leaves[i]} })[0]
			unsent = append(unsent, p.left[i])
		}
	}
	if len(unsent) > 0 {
		b.conn.Process(ctx, unsent)
	}
}

// together tries it in one trip. It answers false if it must be done again.
func (b *Bus) together(ctx context.Context, p *part) bool {
	if b.conn.Cluster() {
		home := b.conn.At(ctx, b.keys[p.rng])
		for _, name := range p.names {
			if home == nil || b.conn.At(ctx, name) != home {
				return false
			}
		}
	}
	announcement := script(ctx, "evalsha", announceScript.Hash, b.keys[p.rng], b.announcement(p.rng, p.body, ""))
	cmds := slices.Concat(p.holds, p.dels, []redis.Cmder{announcement})
	if !b.conn.Cluster() { // where one could be carried out without the other: see leave
		cmds = append(cmds, p.left...)
	}
	if !b.conn.ProcessAt(ctx, b.keys[p.rng], cmds) {
		return false
	}
	p.announced = announcement.Err()
	switch {
	case p.announced == nil:
		b.counts.announced.Add(1)
	case conn.Unknown(announcement):
		_, p.announced = b.announce(ctx, p.rng, p.body, "")
	}
	if !b.conn.Cluster() {
		return true // the client has tried again as its options say
	}
	for i := range p.dels {
		if p.failed(i) != nil {
			return false
		}
	}
	return p.announced == nil
}

// announce numbers and publishes a message, and answers its number. The client may repeat it.
func (b *Bus) announce(ctx context.Context, rng int, body []byte, loader string) (uint64, error) {
	digits, err := b.eval(ctx, announceScript, b.keys[rng], b.announcement(rng, body, loader)...).Text()
	if err != nil {
		return 0, err
	}
	b.counts.announced.Add(1)
	return number(digits)
}

func (b *Bus) announcement(rng int, body []byte, loader string) []any {
	return []any{b.topic, appendHead(nil, rng, b.origin.Load()), body, loader, 1 + rand.N(1000)}
}

// DeleteLoader outdates all entries of a loader: it raises the generation in each range. It ends as
// Delete does.
func (b *Bus) DeleteLoader(ctx context.Context, name string) error {
	caller, began := ctx, time.Now()
	ctx, cancel := context.WithTimeout(ctx, tries*b.conn.Timeout())
	defer cancel()
	ranges := b.conn.InUse()
	errs := make([]error, ranges)
	err := b.conn.Await(ctx, func(ctx context.Context) {
		var all sync.WaitGroup
		for r := range ranges {
			errs[r] = conn.NotReturned(nil) // until it has
			all.Go(func() {
				n, err := b.announce(ctx, r, appendLoader(nil, name), name)
				if errs[r] = err; err != nil {
					b.conn.Refused(caller, b.keys[r], err)
				} else if b.loaders.announced(name, r, n) {
					b.pollers[r].doubt()
				}
			})
		}
		all.Wait()
	})
	if err != nil {
		return b.conn.Explain(caller, err, invalidation, b.keys[0], began)
	}
	for r, err := range errs {
		if err != nil {
			return b.conn.Explain(caller, err, invalidation, b.keys[r], began)
		}
	}
	return nil
}
