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
	size    int // of args in bytes, about, or what takes the server as long
	cmd     *redis.Cmd
	err     error
}

// lost is a reply of a script that has not found its segment.
const lost = -1

// maxTrip is about how many bytes go into one pipeline: a quarter of a millisecond of a server's
// time, for which others wait.
const maxTrip = 128 << 10

// placeSize is how many bytes a place counts for: a script takes about a microsecond for each.
const placeSize = 32

// run carries out all calls, in few trips, each of at most bound; each has its reply or its error
// then. known is false if the server did not know a script of them.
func (f *Redis) run(ctx context.Context, bound time.Duration, calls []*call) (known bool) {
	known = true
	for len(calls) > 0 {
		n, size := 0, 0
		for n < len(calls) && n < conn.MaxPipeline && (n == 0 || size+calls[n].size <= maxTrip) {
			size += calls[n].size
			n++
		}
		known = f.trip(ctx, bound, calls[:n], "evalsha") && known
		calls = calls[n:]
	}
	return known
}

// trip carries out calls in one pipeline. known is false if the server did not know a script of
// them.
func (f *Redis) trip(ctx context.Context, bound time.Duration, calls []*call, how string) (known bool) {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var sent []*call
	var cmds []redis.Cmder
	for _, c := range calls {
		if c.err = f.conn.Down(f.conn.Range(c.keys[0])); c.err != nil {
			continue
		}
		c.cmd = redis.NewCmd(bounded, c.words(how)...)
		sent, cmds = append(sent, c), append(cmds, c.cmd)
	}
	if len(cmds) == 0 {
		return true
	}
	replies := f.conn.Ask(ctx, bounded, cmds)
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
		f.trip(ctx, bound, unknown, "eval")
	}
	return len(unknown) == 0
}

// knows is called with whether the servers have known the script of lookups. One that has known it,
// and does not any more, may have restarted.
func (f *Redis) knows(script bool) {
	switch {
	case script:
		f.watch.ran.Store(true)
	case !f.conn.Cluster() && f.watch.ran.Swap(false):
		f.watch.troubled()
	}
}

// words are those of the command.
func (c *call) words(how string) []any {
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
type inSegment struct {
	segment uint64
	keys    []int // by their places among all
}

// bySegment returns the segments that some keys are in, in the order of the first key of each.
func bySegment(s shape, hashes []hash) (parts []inSegment) {
	at := make(map[uint64]int)
	for i := range hashes {
		segment := s.segment(&hashes[i])
		j, ok := at[segment]
		if !ok {
			j = len(parts)
			at[segment], parts = j, append(parts, inSegment{segment: segment})
		}
		parts[j].keys = append(parts[j].keys, i)
	}
	return parts
}

// places are those of keys in their segment, as the scripts take them.
func (s shape) places(hashes []hash, which []int) string {
	b := make([]byte, 0, 4*len(which)*int(s.k))
	for _, i := range which {
		for j := range s.k {
			b = binary.BigEndian.AppendUint32(b, uint32(headerBits+s.bit(&hashes[i], j)))
		}
	}
	return string(b)
}

// mask is the bits of keys, in Redis' order, behind an empty header.
func (s shape) mask(hashes []hash, which []int) []byte {
	b := make([]byte, headerBytes+s.bits/8)
	for _, i := range which {
		for j := range s.k {
			at := headerBits + s.bit(&hashes[i], j)
			b[at/8] |= 0x80 >> (at % 8)
		}
	}
	return b
}

// write adds keys to a generation. Segments that are lost stay lost: their keys are "maybe".
func (f *Redis) write(ctx context.Context, g *generation, hashes []hash) error {
	missing, err := f.fill(ctx, g, hashes, false)
	f.counts.lostAdds.Add(int64(missing))
	return err
}

// fill adds keys to a generation, and returns how many segments were lost. The commands are made
// trip by trip, for whole segments are large; a gentle caller rests after each trip for as long as
// it took, so that others have their turn.
func (f *Redis) fill(ctx context.Context, g *generation, hashes []hash, gentle bool) (missing uint64, err error) {
	var calls []*call
	size := 0
	send := func() error {
		began := time.Now()
		f.run(ctx, f.allTries(), calls)
		_, m, err := total(calls)
		missing += m
		calls, size = nil, 0
		if err == nil && gentle {
			err = retry.Sleep(ctx, time.Since(began))
		}
		return err
	}
	for _, p := range bySegment(g.shape(), hashes) {
		c := f.adding(g, p.segment, hashes, p.keys)
		calls, size = append(calls, c), size+c.size
		if size >= maxTrip || len(calls) == conn.MaxPipeline {
			if err := send(); err != nil {
				return missing, err
			}
		}
	}
	return missing, send()
}

// total adds up the replies of scripts that return numbers. missing is how many segments were lost.
func total(calls []*call) (sum, missing uint64, err error) {
	for _, c := range calls {
		if c.err != nil {
			return sum, missing, c.err
		}
		n, err := c.cmd.Int64()
		switch {
		case err != nil:
			return sum, missing, errReply
		case n == lost:
			missing++
		default:
			sum += uint64(n)
		}
	}
	return sum, missing, nil
}

// mergeAbove tells when to send all bits of a segment: to set a bit takes Redis longer than to
// merge 1000 bytes, but those have to go there first.
const mergeAbove = 256

func (f *Redis) adding(g *generation, segment uint64, hashes []hash, which []int) *call {
	s := g.shape()
	key := segmentKey(f.options.Prefix, f.name, g.ID, segment)
	if uint64(len(which))*s.k*mergeAbove >= s.bits/8 {
		mask := s.mask(hashes, which)
		return &call{script: mergeScript, keys: []string{key, key + ":merged"}, args: []any{g.header(), g.tag(segment), mask}, size: len(mask)}
	}
	places := s.places(hashes, which)
	return &call{script: addScript, keys: []string{key}, args: []any{g.header(), g.tag(segment), places}, size: len(places) / 4 * placeSize}
}

// countedFor is how many bytes a server counts the bits of in the time that one byte to write
// takes.
const countedFor = 8

// maxAsked is how many keys one script looks for, so that none keeps the server for long.
const maxAsked = 1 << 10

// ask asks the active generation of d for keys, and puts the answers into maybe, which are worth
// nothing unless d was still the descriptor at the time: current. unsure are those keys whose
// segments are lost or, with an error, could not be asked; they are true.
func (f *Redis) ask(ctx context.Context, d *known, hashes []hash, maybe []bool) (unsure []int, current bool, err error) {
	g := d.Active
	s := g.shape()
	parts := bySegment(s, hashes)
	calls, of := make([]*call, 0, len(parts)+1), make([][]int, 0, len(parts))
	for _, p := range parts {
		for some := range slices.Chunk(p.keys, maxAsked) {
			places := s.places(hashes, some)
			calls = append(calls, &call{script: lookupScript, keys: []string{segmentKey(f.options.Prefix, f.name, g.ID, p.segment)}, args: []any{g.header(), g.tag(p.segment), strconv.FormatUint(s.k, 10), places}, size: len(places) / 4 * placeSize})
			of = append(of, some)
		}
	}
	stamp := &call{command: "getrange", keys: []string{f.key}, args: []any{0, stampBytes - 1}}
	f.knows(f.run(ctx, f.options.Timeout, append(calls, stamp)))
	for i, c := range calls {
		reply, failed := answers(c, len(of[i]))
		err = cmp.Or(failed, err)
		if reply == "" {
			unsure = append(unsure, of[i]...)
		}
		for j, key := range of[i] {
			maybe[key] = reply == "" || reply[j] != '0'
		}
	}
	if stamp.err != nil {
		return nil, false, stamp.err
	}
	now, err2 := stamp.cmd.Text()
	return unsure, err2 == nil && now == d.raw[:min(len(d.raw), stampBytes)], cmp.Or(err, err2)
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
func (f *Redis) count(ctx context.Context, g *generation) (set, missing uint64, err error) {
	header := g.header()
	for from := uint64(0); from < g.Segments && err == nil; from += conn.MaxPipeline {
		var calls []*call
		for s := from; s < min(from+conn.MaxPipeline, g.Segments); s++ {
			key := segmentKey(f.options.Prefix, f.name, g.ID, s)
			calls = append(calls, &call{script: countScript, keys: []string{key}, args: []any{header, g.tag(s)}, size: int(g.Bits / 8 / countedFor)})
		}
		f.run(ctx, max(f.allTries(), time.Second), calls)
		n, m, failed := total(calls)
		set, missing, err = set+n, missing+m, failed
	}
	return set, missing, err
}

// holds reports for each of hashes whether a generation may hold it, active or not.
func (f *Redis) holds(ctx context.Context, g *generation, hashes []hash) ([]bool, error) {
	maybe := make([]bool, len(hashes))
	_, _, err := f.ask(ctx, &known{descriptor: descriptor{Active: g}}, hashes, maybe)
	return maybe, err
}

// answers reads a reply of the lookup script: none where the segment is lost.
func answers(c *call, n int) (string, error) {
	if c.err != nil {
		return "", c.err
	}
	switch reply := c.cmd.Val().(type) {
	case string:
		if len(reply) == n {
			return reply, nil
		}
	case int64:
		if reply == lost {
			return "", nil
		}
	}
	return "", fmt.Errorf("%w: %T", errReply, c.cmd.Val())
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
