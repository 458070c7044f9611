package bloom

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/retry"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// call is a script that runs on one segment, or another command, and its reply.
type call struct {
	command string // empty: the script
	script  conn.Script
	keys    []string
	args    []any
	cost    int // approximate size of args in bytes, or the equivalent in server time
	cmd     *redis.Cmd
	err     error
}

// replyLost is the reply of a script that has not found its segment.
const replyLost = -1

// maxTrip is the maximum cost of the calls in one pipeline, in bytes. They take a server a
// quarter of a millisecond, during which other clients wait.
const maxTrip = 128 << 10

// offsetCost is the cost of a bit offset, in bytes: a script takes about a microsecond for each.
const offsetCost = 32

// run runs all calls in few round trips, each with the timeout bound. Each call then has its
// reply or its error. known is false if the server did not have one of the scripts in its cache.
func (r *Redis) run(ctx context.Context, bound time.Duration, calls []*call) (known bool) {
	known = true
	for len(calls) > 0 {
		n, size := 0, 0
		for n < len(calls) && n < conn.MaxPipeline && (n == 0 || size+calls[n].cost <= maxTrip) {
			size += calls[n].cost
			n++
		}
		known = r.runPipeline(ctx, bound, calls[:n], "evalsha") && known
		calls = calls[n:]
	}
	return known
}

// runPipeline runs calls in one pipeline. known is false if the server did not have one of the
// scripts in its cache.
func (r *Redis) runPipeline(ctx context.Context, bound time.Duration, calls []*call, evalCommand string) (known bool) {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var sent []*call
	var cmds []redis.Cmder
	for _, c := range calls {
		if c.err = r.conn.Down(r.conn.Range(c.keys[0])); c.err != nil {
			continue
		}
		c.cmd = redis.NewCmd(bounded, c.commandArgs(evalCommand)...)
		sent, cmds = append(sent, c), append(cmds, c.cmd)
	}
	if len(cmds) == 0 {
		return true
	}
	replies := r.conn.Ask(ctx, bounded, cmds)
	var unknown []*call
	for i, c := range sent {
		if c.err = replies.Err(i); c.err != nil {
			c.cmd = nil // the client may still use it
			continue
		}
		if c.err = c.cmd.Err(); conn.Unknown(c.cmd) {
			unknown = append(unknown, c)
		}
	}
	if len(unknown) > 0 && evalCommand != "eval" {
		r.runPipeline(ctx, bound, unknown, "eval")
	}
	return len(unknown) == 0
}

// checkScriptCache records whether the servers had the lookup script in their cache (known). A
// server that had it and no longer has it may have restarted.
func (r *Redis) checkScriptCache(known bool) {
	switch {
	case known:
		r.watch.scriptKnown.Store(true)
	case !r.conn.Cluster() && r.watch.scriptKnown.Swap(false):
		r.watch.markSuspect()
	}
}

// commandArgs returns the arguments of the command, including its name.
func (c *call) commandArgs(evalCommand string) []any {
	words := []any{evalCommand, c.script.Hash, len(c.keys)}
	switch {
	case c.command != "":
		words = []any{c.command}
	case evalCommand == "eval":
		words[1] = c.script.Source
	}
	for _, key := range c.keys {
		words = append(words, key)
	}
	return append(words, c.args...)
}

// keyGroup contains the keys that belong to one segment.
type keyGroup struct {
	segment uint64
	indexes []int // of the keys in the list of all keys
}

// bySegment groups keys by their segment, in the order of the first key of each.
func bySegment(s bitmap.Shape, hashes []bitmap.Hash) (parts []keyGroup) {
	positions := make(map[uint64]int)
	for i := range hashes {
		segment := s.Segment(&hashes[i])
		j, ok := positions[segment]
		if !ok {
			j = len(parts)
			positions[segment], parts = j, append(parts, keyGroup{segment: segment})
		}
		parts[j].indexes = append(parts[j].indexes, i)
	}
	return parts
}

// bitOffsets returns the bit offsets of the keys at indexes in their segment, as the scripts expect
// them.
func bitOffsets(s bitmap.Shape, hashes []bitmap.Hash, indexes []int) string {
	b := make([]byte, 0, 4*len(indexes)*int(s.K))
	for _, i := range indexes {
		for j := range s.K {
			b = binary.BigEndian.AppendUint32(b, uint32(headerBits+s.BitOffset(&hashes[i], j)))
		}
	}
	return string(b)
}

// bitMask returns the bits of the keys at indexes in the bit order of Redis, after an empty header.
func bitMask(s bitmap.Shape, hashes []bitmap.Hash, indexes []int) []byte {
	b := make([]byte, headerBytes+s.Bits/8)
	for _, i := range indexes {
		for j := range s.K {
			offset := headerBits + s.BitOffset(&hashes[i], j)
			b[offset/8] |= 0x80 >> (offset % 8)
		}
	}
	return b
}

// write adds keys to a generation. Lost segments stay lost: their keys are "maybe".
func (r *Redis) write(ctx context.Context, g *generation, hashes []bitmap.Hash) error {
	missing, err := r.fill(ctx, g, hashes, false)
	r.counts.lostAdds.Add(int64(missing))
	return err
}

// fill adds keys to a generation, and returns the number of lost segments. It creates the
// commands one round trip at a time, because whole segments are large. If gentle is set, it
// sleeps after each round trip for as long as that took, so that other clients can proceed.
func (r *Redis) fill(
	ctx context.Context, g *generation, hashes []bitmap.Hash, gentle bool,
) (missing uint64, err error) {
	var calls []*call
	size := 0
	send := func() error {
		began := time.Now()
		r.run(ctx, r.longTimeout(), calls)
		_, m, err := sumReplies(calls)
		missing += m
		calls, size = nil, 0
		if err == nil && gentle {
			err = retry.Sleep(ctx, time.Since(began))
		}
		return err
	}
	for _, p := range bySegment(g.shape(), hashes) {
		c := r.addCall(g, p.segment, hashes, p.indexes)
		calls, size = append(calls, c), size+c.cost
		if size >= maxTrip || len(calls) == conn.MaxPipeline {
			if err := send(); err != nil {
				return missing, err
			}
		}
	}
	return missing, send()
}

// sumReplies adds up the replies of scripts that return numbers. missing is the number of lost
// segments.
func sumReplies(calls []*call) (sum, missing uint64, err error) {
	for _, c := range calls {
		if c.err != nil {
			return sum, missing, c.err
		}
		n, err := c.cmd.Int64()
		switch {
		case err != nil:
			return sum, missing, errReply
		case n == replyLost:
			missing++
		default:
			sum += uint64(n)
		}
	}
	return sum, missing, nil
}

// mergeFactor decides when to send all bits of a segment. Setting one bit takes Redis longer than
// merging 1000 bytes, but the bytes must also be sent.
const mergeFactor = 256

func (r *Redis) addCall(g *generation, segment uint64, hashes []bitmap.Hash, indexes []int) *call {
	s := g.shape()
	key := segmentKey(r.options.Prefix, r.name, g.ID, segment)
	if uint64(len(indexes))*s.K*mergeFactor >= s.Bits/8 {
		mask := bitMask(s, hashes, indexes)
		return &call{script: mergeScript, keys: []string{key, key + ":merged"},
			args: []any{g.header(), g.tag(segment), mask}, cost: len(mask)}
	}
	places := bitOffsets(s, hashes, indexes)
	return &call{script: addScript, keys: []string{key}, args: []any{g.header(), g.tag(segment), places},
		cost: len(places) / 4 * offsetCost}
}

// countFactor is the number of bytes whose bits a server counts in the time of writing one byte.
const countFactor = 8

// maxKeysPerScript is the maximum number of keys that one script looks up, so that it does not
// block the server for long.
const maxKeysPerScript = 1 << 10

// query looks up keys in the active generation of d, and stores the results in maybe. current
// reports whether d was still the descriptor at that time; if not, the results are invalid.
// unknown has the keys whose segments are lost or, with an error, could not be queried; their
// results are true.
func (r *Redis) query(
	ctx context.Context, d *cachedDescriptor, hashes []bitmap.Hash, maybe []bool,
) (unknown []int, current bool, err error) {
	g := d.Active
	s := g.shape()
	parts := bySegment(s, hashes)
	calls, groups := make([]*call, 0, len(parts)+1), make([][]int, 0, len(parts))
	for _, p := range parts {
		for some := range slices.Chunk(p.indexes, maxKeysPerScript) {
			places := bitOffsets(s, hashes, some)
			calls = append(calls, &call{script: lookupScript,
				keys: []string{segmentKey(r.options.Prefix, r.name, g.ID, p.segment)}, args: []any{g.header(),
					g.tag(p.segment), strconv.FormatUint(s.K, 10), places}, cost: len(places) / 4 * offsetCost})
			groups = append(groups, some)
		}
	}
	revision := &call{command: "getrange", keys: []string{r.key}, args: []any{0, revisionBytes - 1}}
	r.checkScriptCache(r.run(ctx, r.options.Timeout, append(calls, revision)))
	for i, c := range calls {
		reply, failed := parseLookupReply(c, len(groups[i]))
		err = cmp.Or(failed, err)
		if reply == "" {
			unknown = append(unknown, groups[i]...)
		}
		for j, key := range groups[i] {
			maybe[key] = reply == "" || reply[j] != '0'
		}
	}
	if revision.err != nil {
		return nil, false, revision.err
	}
	now, err2 := revision.cmd.Text()
	return unknown, err2 == nil && now == d.raw[:min(len(d.raw), revisionBytes)], cmp.Or(err, err2)
}

// send sends the commands. It fails if one of them fails.
func send(ctx context.Context, server *conn.Conn, cmds []redis.Cmder) error {
	if err := server.Send(ctx, cmds); err != nil {
		return err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			return err
		}
	}
	return nil
}

// count reads the number of set bits of a generation, and the number of its lost segments, whose
// bits do not count.
func (r *Redis) count(ctx context.Context, g *generation) (set, missing uint64, err error) {
	header := g.header()
	for from := uint64(0); from < g.Segments && err == nil; from += conn.MaxPipeline {
		var calls []*call
		for s := from; s < min(from+conn.MaxPipeline, g.Segments); s++ {
			key := segmentKey(r.options.Prefix, r.name, g.ID, s)
			calls = append(calls, &call{script: countScript, keys: []string{key}, args: []any{header, g.tag(s)},
				cost: int(g.Bits / 8 / countFactor)})
		}
		r.run(ctx, max(r.longTimeout(), time.Second), calls)
		n, m, failed := sumReplies(calls)
		set, missing, err = set+n, missing+m, failed
	}
	return set, missing, err
}

// parseLookupReply returns the reply of the lookup script, or an empty string if the segment is
// lost.
func parseLookupReply(c *call, n int) (string, error) {
	if c.err != nil {
		return "", c.err
	}
	switch reply := c.cmd.Val().(type) {
	case string:
		if len(reply) == n {
			return reply, nil
		}
	case int64:
		if reply == replyLost {
			return "", nil
		}
	}
	return "", fmt.Errorf("%w: %T", errReply, c.cmd.Val())
}

func indexesUpTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
