package bloom

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// maxOnce is how many keys are added in one step: more take a server too long for one script.
const maxOnce = 64

// oneTrip tells whether keys can be added in one step: all that it takes is on one server, and they
// are few.
func (f *Redis) oneTrip(hashes []hash) bool {
	return len(hashes) <= maxOnce && !f.conn.Cluster() && !f.apart.Load()
}

// addOnce is addTo in one trip.
func (f *Redis) addOnce(ctx context.Context, d *known, to []*generation, hashes []hash) (now *known, err error) {
	if err := f.home.Down(0); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	err = f.channel.TellBy(f.key, encodeHashes(hashes), func(key string, args []any) error {
		now, err = f.runOnce(ctx, bounded, d, f.onceKeys(key, to, hashes), f.onceArgs(args, d, to, hashes))
		return err
	})
	if r := f.copy.Load(); r != nil {
		r.apply(hashes) // not before: a copy that is begun later fetches what Redis has then
	}
	return now, err
}

// runOnce sends the script.
func (f *Redis) runOnce(ctx, bounded context.Context, d *known, keys []string, args []any) (*known, error) {
	at, sent := time.Now(), f.watch.sent()
	c := &call{script: onceScript, keys: keys, args: args}
	c.cmd = redis.NewCmd(bounded, c.words("evalsha")...)
	err := f.home.Ask(ctx, bounded, []redis.Cmder{c.cmd}).Err(0)
	if err == nil && conn.Unknown(c.cmd) {
		c.cmd = redis.NewCmd(bounded, c.words("eval")...)
		err = f.home.Ask(ctx, bounded, []redis.Cmder{c.cmd}).Err(0)
	}
	if err != nil {
		return nil, err
	}
	if n, ok := c.cmd.Val().(int64); ok {
		return d, f.marked(sent, []string{strconv.FormatInt(n, 10)})
	}
	reply, err := c.cmd.Slice()
	if err != nil {
		return nil, err
	}
	if len(reply) != 4 {
		return nil, errReply
	}
	left, ok := textsOf(reply[0])
	missing, ok2 := reply[1].(int64)
	raw, ok3 := reply[2].(string)
	tallied, ok4 := tallyOf(reply[3])
	if !ok || !ok2 || !ok3 || !ok4 {
		return nil, errReply
	}
	if err := f.marked(sent, left); err != nil {
		return nil, err
	}
	f.counts.lostAdds.Add(missing)
	now, err := f.learn(raw, at)
	if err == nil && len(tallied) > 0 {
		f.filled(now, tallied)
	}
	return now, err
}

// onceKeys are the keys of onceScript.
func (f *Redis) onceKeys(numbers string, to []*generation, hashes []hash) []string {
	keys := []string{numbers, f.key, f.tally, f.marks}
	for _, g := range to {
		for _, p := range inOrder(g.shape(), hashes) {
			keys = append(keys, segmentKey(f.options.Prefix, f.name, g.ID, p.segment))
		}
	}
	return keys
}

// onceArgs are its arguments, of which announces are the first.
func (f *Redis) onceArgs(announces []any, d *known, to []*generation, hashes []hash) []any {
	tallied := ""
	if f.options.OverCapacity != nil {
		tallied = "1"
	}
	args := append(announces, f.watch.id, d.raw[:min(len(d.raw), stampBytes)], tallied, strconv.Itoa(len(to)), stampBytes)
	for _, g := range to {
		parts := inOrder(g.shape(), hashes)
		args = append(args, g.ID, g.header(), strconv.FormatUint(headerBytes+g.Bits/8, 10), strconv.Itoa(len(parts)))
		for _, p := range parts {
			args = append(args, g.tag(p.segment), strconv.Itoa(len(p.keys)*int(g.K)))
			for _, i := range p.keys {
				for j := range g.K {
					args = append(args, strconv.FormatUint(headerBits+g.shape().bit(&hashes[i], j), 10))
				}
			}
		}
	}
	return args
}

// inSegment are keys that are in a segment.
type inSegment struct {
	segment uint64
	keys    []int
}

// inOrder is bySegment for a few keys, in an order that is the same each time.
func inOrder(s shape, hashes []hash) (parts []inSegment) {
next:
	for i := range hashes {
		segment := s.segment(&hashes[i])
		for j := range parts {
			if parts[j].segment == segment {
				parts[j].keys = append(parts[j].keys, i)
				continue next
			}
		}
		parts = append(parts, inSegment{segment, []int{i}})
	}
	return parts
}
