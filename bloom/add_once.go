package bloom

import (
	"context"
	"time"
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
	err = f.bus.TellBy(f.key, encodeHashes(hashes), func(key string, args []any) error {
		at, sent := time.Now(), f.watch.sent()
		c := f.once(key, args, d, to, hashes)
		if f.trip(ctx, f.allTries(), []*call{c}, "evalsha"); c.err != nil {
			return c.err
		}
		reply, err := ackOf(c.cmd)
		if err == nil {
			f.counts.lostAdds.Add(reply.missing)
			now, err = f.acknowledged(reply, d, at, sent)
		}
		return err
	})
	if r := f.copy.Load(); r != nil {
		r.apply(hashes) // not before: a copy that is begun later fetches what Redis has then
	}
	return now, err
}

// once is the script with its keys and arguments, of which announces are the first.
func (f *Redis) once(numbers string, announces []any, d *known, to []*generation, hashes []hash) *call {
	keys := append(make([]string, 0, 8), numbers, f.key, f.tally, f.marks)
	tallied := ""
	if f.options.OverCapacity != nil {
		tallied = "1"
	}
	args := append(make([]any, 0, 32), announces...)
	args = append(args, f.watch.id, d.raw[:min(len(d.raw), stampBytes)], tallied, len(to), stampBytes)
	for _, g := range to {
		shape, parts := g.shape(), bySegment(g.shape(), hashes)
		args = append(args, g.ID, g.header(), headerBytes+g.Bits/8, len(parts))
		for _, p := range parts {
			keys = append(keys, segmentKey(f.options.Prefix, f.name, g.ID, p.segment))
			args = append(args, g.tag(p.segment), len(p.keys)*int(g.K))
			for _, i := range p.keys {
				for j := range g.K {
					args = append(args, headerBits+shape.bit(&hashes[i], j))
				}
			}
		}
	}
	return &call{script: onceScript, keys: keys, args: args}
}
