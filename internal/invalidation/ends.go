package invalidation

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// An end is the message that the loads of some keys have ended. It wakes the processes that wait
// for these loads. Like a question, it is published on the channel of the announcements, has no
// number and changes nothing: a waiting process looks up the key again. If it is lost, the process
// does so later. Versions of this package without ends count it as malformed and ignore it.
//
// Its first byte is that of a question. endKind and the stable hashes of the keys follow.
const (
	endKind  = 'e'
	maxEnded = 128 // keys in a message
)

// ends holds the waits for loads of other processes.
type ends struct {
	mu    sync.Mutex
	waits map[uint64][]*EndWait // by stable hash
	// the last ends: a load may have ended after a lookup has found its lease, and before the wait
	// has begun
	recent [256]struct {
		stable uint64
		at     time.Duration // on the bus's clock
	}
	next int // in recent
}

// An EndWait is a wait for the end of one of several loads.
type EndWait struct {
	bus    *Bus
	stable []uint64
	woken  chan struct{}
}

// WaitForEnd begins a wait for the end of a load of one of the keys with these stable hashes. It
// also notices an end since the given time on the bus's clock. The caller must call Close.
func (b *Bus) WaitForEnd(stable []uint64, since time.Duration) *EndWait {
	w := &EndWait{bus: b, stable: stable, woken: make(chan struct{}, 1)}
	e := &b.ends
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waits == nil {
		e.waits = make(map[uint64][]*EndWait)
	}
	for _, s := range stable {
		e.waits[s] = append(e.waits[s], w)
	}
	for _, r := range e.recent {
		if r.at > since && slices.Contains(stable, r.stable) {
			w.wake()
		}
	}
	return w
}

// Woken returns the channel that receives a value when one of the loads has ended. An invalidation
// of the key ends its load too.
func (w *EndWait) Woken() <-chan struct{} { return w.woken }

func (w *EndWait) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// Close ends the wait.
func (w *EndWait) Close() {
	e := &w.bus.ends
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range w.stable {
		rest := slices.DeleteFunc(e.waits[s], func(other *EndWait) bool { return other == w })
		if e.waits[s] = rest; len(rest) == 0 {
			delete(e.waits, s)
		}
	}
}

// loadEnded wakes those who wait for a load of the keys with this stable hash.
func (b *Bus) loadEnded(stable uint64) {
	e := &b.ends
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recent[e.next].stable, e.recent[e.next].at = stable, b.Now()
	e.next = (e.next + 1) % len(e.recent)
	for _, w := range e.waits[stable] {
		w.wake()
	}
}

// AnnounceEnds publishes that the loads of the keys with these stable hashes have ended.
func (b *Bus) AnnounceEnds(ctx context.Context, stable []uint64) error {
	var cmds []redis.Cmder
	for part := range slices.Chunk(stable, maxEnded) {
		body := []byte{questionByte, endKind}
		for _, s := range part {
			body = binary.BigEndian.AppendUint64(body, s)
		}
		cmds = append(cmds, redis.NewIntCmd(ctx, "publish", b.topic, body))
	}
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	if err := b.conn.Await(ctx, func(ctx context.Context) { b.conn.Process(ctx, cmds) }); err != nil {
		return err // the commands may still be in use
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return cmd.Err()
		}
	}
	return nil
}

// receiveEnds reports whether a message is an end, and wakes those who wait for it.
func (b *Bus) receiveEnds(payload string) bool {
	if len(payload) < 2 || payload[1] != endKind || len(payload) > 2+8*maxEnded || len(payload)%8 != 2 {
		return false
	}
	for hashes := []byte(payload[2:]); len(hashes) > 0; hashes = hashes[8:] {
		b.loadEnded(binary.BigEndian.Uint64(hashes))
	}
	return true
}

// Channel returns the channel of the announcements.
func (b *Bus) Channel() string { return b.topic }

// Receives reports whether this process is subscribed, and so receives the ends of loads.
func (b *Bus) Receives(rng uint8) bool {
	t := b.tracks[rng]
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session != 0
}
