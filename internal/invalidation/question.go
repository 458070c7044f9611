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

// A question asks all processes that listen what their memory has of some keys. It goes by the
// bus of the announcements, so that it is asked by the way, and of those, whose loss is to be
// found; but it is none of them: it has no number, changes nothing, and may be lost. Its first byte
// is that of no announcement; a Question in JSON follows. Versions that do not know it count a
// message that they cannot read, and do nothing else; so does this one with later versions of it.
//
// The answers are put into a hash that the questioner has made, with an end: where there is none,
// or enough have come, nothing is. A process has one field there.
const (
	questionByte = 0xD1
	maxQuestion  = 64 << 10 // bytes
	maxLoader    = 255      // bytes of a loader's name
	maxAgo       = 30 * 24 * time.Hour

	// MaxAsked is how many keys a question is about, at most. One without keys asks which processes
	// are there.
	MaxAsked = 128

	maxAnswers = 4096
)

// Question is what is asked. Its JSON is read by programs of other versions.
type Question struct {
	ID       uint64        `json:"id"`       // by which it is answered
	Patience time.Duration `json:"patience"` // how long an answer is waited for
	Keys     []Asked       `json:"keys"`
}

// Asked is a key that is asked for.
type Asked struct {
	Loader string        `json:"loader"`
	Hash   uint64        `json:"hash"` // the stable one
	Ago    time.Duration `json:"ago"`  // since its row was written
}

// check returns an error if the question must not be asked or answered.
func (q *Question) check() error {
	if len(q.Keys) > MaxAsked {
		return fmt.Errorf("a question about %d keys: at most %d", len(q.Keys), MaxAsked)
	}
	for _, k := range q.Keys {
		if len(k.Loader) > maxLoader || !keys.ValidName(k.Loader) || k.Ago < 0 || k.Ago > maxAgo {
			return errors.New("a question about a key that cannot be asked for")
		}
	}
	return nil
}

// encode returns the message that asks q.
func (q *Question) encode() ([]byte, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(q)
	return append([]byte{questionByte}, b...), err
}

// isQuestion tells questions from announcements.
func isQuestion(payload string) bool { return len(payload) > 0 && payload[0] == questionByte }

// ReadQuestion reads a question. Its allocations are bounded, whatever it reads.
func ReadQuestion(payload string) (q Question, err error) {
	if !isQuestion(payload) || len(payload) > maxQuestion || json.Unmarshal([]byte(payload[1:]), &q) != nil || q.check() != nil {
		return Question{}, errMalformed
	}
	return q, nil
}

// Answer sets the function that is given the questions that are heard. It must be quick, since the
// announcements behind wait for it.
func (b *Bus) Answer(heard func(Question)) { b.questions.Store(&heard) }

func (b *Bus) question(payload string) {
	q, err := ReadQuestion(payload)
	heard := b.questions.Load()
	if err != nil || heard == nil {
		b.counts.malformed.Add(1)
		return
	}
	b.counts.questions.Add(1)
	(*heard)(q)
}

// Unanswered counts a question that was heard, and is not answered.
func (b *Bus) Unanswered() { b.counts.unanswered.Add(1) }

// answersKey is where the answers to a question are put.
func (b *Bus) answersKey(id uint64) string {
	return fmt.Sprintf("%s::meter:{%016x}", b.prefix, id)
}

// askScript makes the place for the answers, with an end, and publishes the question. ARGV:
// channel, question, how long the place lives in ms. Answers to how many it was given.
var askScript = conn.NewScript(`
redis.call('HSET', KEYS[1], '', '')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('PUBLISH', ARGV[1], ARGV[2])`)

// answerScript puts an answer there, if somebody waits for it. ARGV: whose, answer, how many are
// enough.
var answerScript = conn.NewScript(`
local n = redis.call('HLEN', KEYS[1])
if n == 0 or n > tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1`)

// answersScript takes the answers away.
var answersScript = conn.NewScript(`
local answers = redis.call('HGETALL', KEYS[1])
redis.call('DEL', KEYS[1])
return answers`)

// Ask publishes a question, whose answers stay for its patience and life more. It tells how many
// processes listen, also those that are too old to answer. It ends with ctx, or with a command's
// time-out.
func (b *Bus) Ask(ctx context.Context, q Question, life time.Duration) (listeners int, err error) {
	body, err := q.encode()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	cmd, err := b.await(ctx, askScript, b.answersKey(q.ID), b.topic, body, (q.Patience + life).Milliseconds())
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
		return 0, err // and what it writes to may still be in use
	}
	return n, counted
}

// GiveAnswer answers a question for the process with the id who. It is false where nobody waits for
// the answer any more.
func (b *Bus) GiveAnswer(ctx context.Context, id, who uint64, answer []byte) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	cmd, err := b.await(ctx, answerScript, b.answersKey(id), fmt.Sprintf("%016x", who), answer, maxAnswers)
	if err != nil {
		return false, err
	}
	return cmd.Bool()
}

// Answers takes those away that have come to a question.
func (b *Bus) Answers(ctx context.Context, id uint64) (answers []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	cmd, err := b.await(ctx, answersScript, b.answersKey(id))
	if err != nil {
		return nil, err
	}
	fields, err := cmd.Slice()
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(fields); i += 2 {
		who, _ := fields[i].(string)
		answer, ok := fields[i+1].(string)
		if ok && who != "" {
			answers = append(answers, answer)
		}
	}
	return answers, nil
}
