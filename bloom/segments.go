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
)

// call is a script that is run on one segment, or another command, and its reply.
type call struct {
	command string // "": the script
	script  conn.Script
	keys    []string
	args    []any
	cost    int // of args in bytes, about, or what takes the server as long
	cmd     *redis.Cmd
	err     error
}

// lost is a reply of a script that has not found its segment.
const replyLost = -1

// maxTrip is about how many bytes go into one pipeline: a quarter of a millisecond of a server's
// time, for which others wait.
const maxTrip = 128 << 10

// placeSize is how many bytes a place counts for: a script takes about a microsecond for each.
const offsetCost = 32

// run carries out all calls, in few trips, each of at most bound; each has its reply or its error
// then. known is false if the server did not know a script of them.
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

// trip carries out calls in one pipeline. known is false if the server did not know a script of
// them.
func (r *Redis) runPipeline(ctx context.Context, bound time.Duration, calls []*call, how string) (known bool) {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var sent []*call
	var cmds []redis.Cmder
	for _, c := range calls {
		if c.err = r.conn.Down(r.conn.Range(c.keys[0])); c.err != nil {
			continue
		}
		c.cmd = redis.NewCmd(bounded, c.commandArgs(how)...)
		sent, cmds = append(sent, c), append(cmds, c.cmd)
	}
	if len(cmds) == 0 {
		return true
	}
	replies := r.conn.Ask(ctx, bounded, cmds)
	var unknown []*call
	for i, c := range sent {
		if c.err = replies.Err(i); c.err != nil {
			c.cmd = nil // it may still be in use
			continue
		}
		if c.err = c.cmd.Err(); conn.Unknown(c.cmd) {
			unknown = append(unknown, c)
		}
	}
	if len(unknown) > 0 && how != "eval" {
		r.runPipeline(ctx, bound, unknown, "eval")
	}
	return len(unknown) == 0
}

// knows is called with whether the servers have known the script of lookups. One that has known it,
// and does not any more, may have restarted.
func (r *Redis) checkScriptCache(script bool) {
	switch {
	case script:
		r.watch.scriptKnown.Store(true)
	case !r.conn.Cluster() && r.watch.scriptKnown.Swap(false):
		r.watch.markSuspect()
	}
}

// words are those of the command.
func (c *call) commandArgs(how string) []any {
	words := []any{how, c.script.Hash, len(c.keys)}
	switch {
	case c.command != "":
		words = []any{c.command}
	case how == "eval":
		words[1] = c.script.Source
	}
	for _, key := range c.keys {
		words = append(words, key)
	}
	return append(words, c.args...)
}

// inSegment are those of some keys that are in one segment.
type keyGroup struct {
	segment uint64
	indexes []int // by their places among all
}

// bySegment returns the segments that some keys are in, in the order of the first key of each.
func bySegment(s shape, hashes []hash) (parts []keyGroup) {
	at := make(map[uint64]int)
	for i := range hashes {
		segment := s.segment(&hashes[i])
		j, ok := at[segment]
		if !ok {
			j = len(parts)
			at[segment], parts = j, append(parts, keyGroup{segment: segment})
		}
		parts[j].indexes = append(parts[j].indexes, i)
	}
	return parts
}

// places are those of keys in their segment, as the scripts take them.
func (s shape) offsets(hashes []hash, which []int) string {
	b := make([]byte, 0, 4*len(which)*int(s.k))
	for _, i := range which {
		for j := range s.k {
			b = binary.BigEndian.AppendUint32(b, uint32(headerBits+s.bitOffset(&hashes[i], j)))
		}
	}
	return string(b)
}

// mask is the bits of keys, in Redis' order, behind an empty header.
func (s shape) mask(hashes []hash, which []int) []byte {
	b := make([]byte, headerBytes+s.bits/8)
	for _, i := range which {
		for j := range s.k {
			at := headerBits + s.bitOffset(&hashes[i], j)
			b[at/8] |= 0x80 >> (at % 8)
		}
	}
	return b
}

// write adds keys to a generation. Segments that are lost stay lost: their keys are "maybe".
func (r *Redis) write(ctx context.Context, g *generation, hashes []hash) error {
	missing, err := r.fill(ctx, g, hashes, false)
	r.counts.lostAdds.Add(int64(missing))
	return err
}

// fill adds keys to a generation, and returns how many segments were lost. The commands are made
// trip by trip, for whole segments are large; a gentle caller rests after each trip for as long as
// it took, so that others have their turn.
func (r *Redis) fill(ctx context.Context, g *generation, hashes []hash, gentle bool) (missing uint64, err error) {
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

// total adds up the replies of scripts that return numbers. missing is how many segments were lost.
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

// mergeAbove tells when to send all bits of a segment: to set a bit takes Redis longer than to
// merge 1000 bytes, but those have to go there first.
const mergeFactor = 256

func (r *Redis) addCall(g *generation, segment uint64, hashes []hash, which []int) *call {
	s := g.shape()
	key := segmentKey(r.options.Prefix, r.name, g.ID, segment)
	if uint64(len(which))*s.k*mergeFactor >= s.bits/8 {
		mask := s.mask(hashes, which)
		return &call{script: mergeScript, keys: []string{key, key + ":merged"}, args: []any{g.header(), g.tag(segment), mask}, cost: len(mask)}
	}
	places := s.offsets(hashes, which)
	return &call{script: addScript, keys: []string{key}, args: []any{g.header(), g.tag(segment), places}, cost: len(places) / 4 * offsetCost}
}

// countedFor is how many bytes a server counts the bits of in the time that one byte to write
// takes.
const countFactor = 8

// maxAsked is how many keys one script looks for, so that none keeps the server for long.
const maxKeysPerScript = 1 << 10

// ask asks the active generation of d for keys, and puts the answers into maybe, which are worth
// nothing unless d was still the descriptor at the time: current. unsure are those keys whose
// segments are lost or, with an error, could not be asked; they are true.
func (r *Redis) query(ctx context.Context, d *cachedDescriptor, hashes []hash, maybe []bool) (unknown []int, current bool, err error) {
	g := d.Active
	s := g.shape()
	parts := bySegment(s, hashes)
	calls, groups := make([]*call, 0, len(parts)+1), make([][]int, 0, len(parts))
	for _, p := range parts {
		for some := range slices.Chunk(p.indexes, maxKeysPerScript) {
			places := s.offsets(hashes, some)
			calls = append(calls, &call{script: lookupScript, keys: []string{segmentKey(r.options.Prefix, r.name, g.ID, p.segment)}, args: []any{g.header(), g.tag(p.segment), strconv.FormatUint(s.k, 10), places}, cost: len(places) / 4 * offsetCost})
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

// send fails if one of the commands does.
func send(ctx context.Context, to *conn.Conn, cmds []redis.Cmder) error {
	if err := to.Send(ctx, cmds); err != nil {
		return err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			return err
		}
	}
	return nil
}

// count asks Redis how many bits are set in a generation, and how many of its segments are lost:
// of these no bits are counted.
func (r *Redis) count(ctx context.Context, g *generation) (set, missing uint64, err error) {
	header := g.header()
	for from := uint64(0); from < g.Segments && err == nil; from += conn.MaxPipeline {
		var calls []*call
		for s := from; s < min(from+conn.MaxPipeline, g.Segments); s++ {
			key := segmentKey(r.options.Prefix, r.name, g.ID, s)
			calls = append(calls, &call{script: countScript, keys: []string{key}, args: []any{header, g.tag(s)}, cost: int(g.Bits / 8 / countFactor)})
		}
		r.run(ctx, max(r.longTimeout(), time.Second), calls)
		n, m, failed := sumReplies(calls)
		set, missing, err = set+n, missing+m, failed
	}
	return set, missing, err
}

// holds reports for each of hashes whether a generation may hold it, active or not.
func (r *Redis) holds(ctx context.Context, g *generation, hashes []hash) ([]bool, error) {
	maybe := make([]bool, len(hashes))
	_, _, err := r.query(ctx, &cachedDescriptor{descriptor: descriptor{Active: g}}, hashes, maybe)
	return maybe, err
}

// answers reads a reply of the lookup script: none where the segment is lost.
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
