package invalidation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// A question asks all listening processes for their copies of some keys. It is published on the
// channel of the announcements, so that it is lost where announcements are lost. But it is not an
// announcement: it has no number and changes nothing. Its first byte differs from that of an
// announcement; a Question in JSON follows. Versions of this package without questions count it as
// malformed and ignore it.
//
// The replies are fields of a hash that the asking process has created, with an expiry. A process
// adds one field. If the hash does not exist or is full, it adds none.
const (
	questionByte = 0xD1     // also in NoMessage
	maxQuestion  = 64 << 10 // bytes
	maxLoader    = 255      // bytes of a loader's name
	maxAgo       = 30 * 24 * time.Hour

	// MaxAsked is the maximum number of keys in a question. A question without keys asks which
	// processes exist.
	MaxAsked = 128

	maxReplies = 4096
)

// A Question is the content of a question. Programs of other versions read its JSON.
type Question struct {
	ID       uint64        `json:"id"`       // identifies the replies
	Patience time.Duration `json:"patience"` // how long the asking process waits for replies
	Keys     []Asked       `json:"keys"`
	// Share is the probability with which a process replies, 0 for 1. Versions that do not know it
	// always reply.
	Share float64 `json:"share,omitempty"`
}

// Asked is a key in a question.
type Asked struct {
	Loader string        `json:"loader"`
	Hash   uint64        `json:"hash"` // the stable hash
	Ago    time.Duration `json:"ago"`  // time since its row was written
}

// NoMessage is a message that a process counts as malformed, does not log and otherwise ignores.
const NoMessage = "\xD1settle"

// check returns an error if the question must not be sent or handled.
func (q *Question) check() error {
	if len(q.Keys) > MaxAsked {
		return fmt.Errorf("a question about %d keys: at most %d", len(q.Keys), MaxAsked)
	}
	if !(q.Share >= 0 && q.Share <= 1) {
		return fmt.Errorf("a question to a share %v of the processes", q.Share)
	}
	for _, k := range q.Keys {
		if len(k.Loader) > maxLoader || !keys.ValidName(k.Loader) || k.Ago < 0 || k.Ago > maxAgo {
			return errors.New("a question about an invalid key")
		}
	}
	return nil
}

// encode returns the message for q.
func (q *Question) encode() ([]byte, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(q)
	return append([]byte{questionByte}, b...), err
}

// isQuestion reports whether a message is a question.
func isQuestion(payload string) bool { return len(payload) > 0 && payload[0] == questionByte }

// ReadQuestion decodes a question. Its allocations are bounded for any input.
func ReadQuestion(payload string) (q Question, err error) {
	if !isQuestion(payload) || len(payload) > maxQuestion || json.Unmarshal([]byte(payload[1:]), &q) != nil ||
		q.check() != nil {
		return Question{}, errMalformed
	}
	return q, nil
}

// OnQuestion sets the function that handles received questions. It must be quick, because it delays
// the announcements that follow.
func (b *Bus) OnQuestion(handle func(Question)) { b.questions.Store(&handle) }

func (b *Bus) receiveQuestion(payload string) {
	q, err := ReadQuestion(payload)
	handle := b.questions.Load()
	if err != nil || handle == nil {
		b.counts.malformed.Add(1)
		return
	}
	b.counts.questions.Add(1)
	(*handle)(q)
}

// Unanswered counts a received question that is not replied to.
func (b *Bus) Unanswered() { b.counts.unanswered.Add(1) }

// repliesKey returns the name of the hash for the replies to a question.
func (b *Bus) repliesKey(id uint64) string {
	return fmt.Sprintf("%s::meter:{%016x}", b.prefix, id)
}

// askScript creates the hash for the replies, with an expiry, and publishes the question. ARGV:
// channel, question, life of the hash in ms. The script returns the number of receivers.
var askScript = conn.NewScript(`
redis.call('HSET', KEYS[1], '', '')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('PUBLISH', ARGV[1], ARGV[2])`)

// replyScript adds a reply if the hash exists. ARGV: the id of the process, the reply, the
// maximum number of replies.
var replyScript = conn.NewScript(`
local n = redis.call('HLEN', KEYS[1])
if n == 0 or n > tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1`)

// repliesScript returns the replies and deletes the hash.
var repliesScript = conn.NewScript(`
local replies = redis.call('HGETALL', KEYS[1])
redis.call('DEL', KEYS[1])
return replies`)

// Ask publishes a question. Its replies stay in Redis for q.Patience and life. Ask returns the
// number of listening processes, including those whose version cannot reply. It ends with ctx, or
// after a command's time-out.
func (b *Bus) Ask(ctx context.Context, q Question, life time.Duration) (listeners int, err error) {
	body, err := q.encode()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	cmd, err := b.await(ctx, askScript, b.repliesKey(q.ID), b.topic, body, (q.Patience + life).Milliseconds())
	if err != nil {
		return 0, err
	}
	if !b.conn.Cluster() {
		return cmd.Int()
	}
	var n int
	err = conn.NotReturned(nil) // until it has
	counted := err
	if err = b.conn.Await(ctx, func(ctx context.Context) { n, counted = b.conn.Listeners(ctx, b.topic) }); err != nil {
		return 0, err // n and counted may still be in use
	}
	return n, counted
}

// Reply replies to a question for the process with the id who. It returns false if the
// asking process no longer waits.
func (b *Bus) Reply(ctx context.Context, id, who uint64, reply []byte) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	cmd, err := b.await(ctx, replyScript, b.repliesKey(id), fmt.Sprintf("%016x", who), reply, maxReplies)
	if err != nil {
		return false, err
	}
	return cmd.Bool()
}

// Replies returns the replies to a question and deletes them.
func (b *Bus) Replies(ctx context.Context, id uint64) (replies []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	cmd, err := b.await(ctx, repliesScript, b.repliesKey(id))
	if err != nil {
		return nil, err
	}
	fields, err := cmd.Slice()
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(fields); i += 2 {
		who, _ := fields[i].(string)
		reply, ok := fields[i+1].(string)
		if ok && who != "" {
			replies = append(replies, reply)
		}
	}
	return replies, nil
}
