package invalidation

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A token lists announcements. Another process compares them with those that it has received. A
// token is base64 of:
//
//	0..3   FNV-1a of the channel of the announcements
//	4..12  the range (1 byte) and the number (8 bytes) of an announcement, and so on. The range has
//	       loaderBit if the announcement, or one for which it stands, is of a whole loader
//
// An announcement also stands for those of its range with smaller numbers that were made before:
// a process that has received it has received them too, or has outdated all that it had. After a
// failover numbers may be smaller than before. So they are not compared: a process must have
// received that very announcement.

const (
	tokenHead = 4
	tokenItem = 1 + 8
	loaderBit = 0x80
	// maxTokenItems is the maximum number of announcements in a token.
	maxTokenItems = 4 * conn.Ranges
)

// MaxToken is the maximum length of a token.
var MaxToken = base64.RawURLEncoding.EncodedLen(tokenHead + maxTokenItems*tokenItem)

// tokenEntry is an announcement in a token.
type tokenEntry struct {
	rng    uint8 // perhaps with loaderBit
	number uint64
}

// A Collector collects the announcements that are made with a context. It is safe for concurrent
// use.
type Collector struct {
	outer *Collector // also collects them; may be nil

	mu      sync.Mutex
	topic   string       // the channel of the announcements
	entries []tokenEntry // at most maxTokenItems
	// too many announcements, or those of several channels: no process has received all of them
	unknowable bool
}

type collectorKey struct{}

// Collect returns a context with a collector.
func Collect(ctx context.Context) (context.Context, *Collector) {
	outer, _ := ctx.Value(collectorKey{}).(*Collector)
	c := &Collector{outer: outer}
	return context.WithValue(ctx, collectorKey{}, c), c
}

// collect adds an announcement to the collectors of ctx. bits is loaderBit or 0.
func (b *Bus) collect(ctx context.Context, rng int, bits uint8, number uint64) {
	c, _ := ctx.Value(collectorKey{}).(*Collector)
	c.add(b.topic, tokenEntry{uint8(rng) | bits, number})
}

// add adds announcements to c and the outer collectors.
func (c *Collector) add(topic string, entries ...tokenEntry) {
	for ; c != nil; c = c.outer {
		c.mu.Lock()
		c.unknowable = c.unknowable || c.topic != "" && c.topic != topic
		c.topic = topic
		for _, e := range entries {
			c.entries = slices.DeleteFunc(c.entries, func(old tokenEntry) bool {
				replaced := old.rng&^loaderBit == e.rng&^loaderBit && old.number <= e.number
				if replaced {
					e.rng |= old.rng & loaderBit
				}
				return replaced
			})
			if c.unknowable = c.unknowable || len(c.entries) == maxTokenItems; c.unknowable {
				c.entries = nil
				break
			}
			c.entries = append(c.entries, e)
		}
		c.mu.Unlock()
	}
}

// addTo adds what c has collected to the collectors of ctx.
func (c *Collector) addTo(ctx context.Context) {
	to, _ := ctx.Value(collectorKey{}).(*Collector)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) > 0 {
		to.add(c.topic, c.entries...)
	}
}

// Token returns a token of the announcements so far, or "" if there were none.
func (c *Collector) Token() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries := c.entries
	if c.unknowable {
		entries = []tokenEntry{{rng: unknowableRange}}
	}
	if len(entries) == 0 {
		return ""
	}
	b := tokenOf(c.topic)
	for _, e := range entries {
		b = binary.BigEndian.AppendUint64(append(b, e.rng), e.number)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// unknowableRange is a range that does not exist.
const unknowableRange = conn.Ranges | loaderBit

// tokenOf returns the first bytes of a token of announcements on a channel.
func tokenOf(topic string) []byte {
	h := fnv.New32a()
	h.Write([]byte(topic))
	return h.Sum(nil)
}

// MayUseMemory reports whether a read with a token may use memory: this process has received the
// announcements of the token, or has outdated what it had in memory since they were made. It
// returns false for a token that is malformed, or of another cache, or too old: a process remembers
// its last maxRecent announcements in a range.
//
// A read from Redis does not observe the invalidation of a whole loader before this process knows
// the new generation. So if the token includes one that was not received, the next reads poll.
func (b *Bus) MayUseMemory(token string) bool {
	if token == "" {
		return true
	}
	if len(token) > MaxToken {
		return false
	}
	items, err := base64.RawURLEncoding.AppendDecode(make([]byte, 0, 64), []byte(token))
	if err != nil || len(items) <= tokenHead || (len(items)-tokenHead)%tokenItem != 0 {
		return false
	}
	received := string(items[:tokenHead]) == string(tokenOf(b.topic))
	own := received
	for items = items[tokenHead:]; len(items) > 0; items = items[tokenItem:] {
		rng := int(items[0] &^ loaderBit)
		switch {
		case own && rng < b.conn.InUse():
			has := b.tracks[rng].has(binary.BigEndian.Uint64(items[1:]))
			if !has && items[0]&loaderBit != 0 {
				b.pollers[rng].unconfirm()
			}
			received = received && has
		case items[0] == unknowableRange: // perhaps of several caches, one of them this one
			for _, p := range b.pollers[:b.conn.InUse()] {
				p.unconfirm()
			}
			received = false
		default:
			received = false
		}
	}
	return received
}

// maxRecent is the number of announcements that a track remembers for tokens.
const maxRecent = 1024

// recent contains the last numbers that were covered (see track.cover) or that a poll has returned.
type recent struct {
	numbers []uint64 // at most maxRecent
	next    int      // in numbers, once it is full
	newest  uint64
}

func (r *recent) add(num uint64) {
	if num == r.newest { // a poll that finds nothing new
		return
	}
	r.newest = num
	if len(r.numbers) < maxRecent {
		r.numbers = append(r.numbers, num)
		return
	}
	r.numbers[r.next] = num
	r.next = (r.next + 1) % maxRecent
}

// has reports whether the announcement with this number and all earlier ones were received, or
// memory was outdated after them.
func (t *track) has(num uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session != 0 && t.synced && slices.Contains(t.recent.numbers, num)
}
