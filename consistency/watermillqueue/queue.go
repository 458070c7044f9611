package watermillqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/cacheaside/cacheaside/consistency"
)

const (
	maxHeld     = 10_000 // messages of a topic
	maxUnderWay = 64     // publications at once
)

var errClosed = errors.New("watermillqueue: closed")

// Queue is a consistency.Queue in a message broker; see the package's comment for what it promises.
// It is safe for concurrent use.
type Queue struct {
	publisher     message.Publisher
	subscriber    message.Subscriber
	topics        [2]string // for what is due, and for what waits
	subscriptions int
	room          [2]chan struct{} // as full as so many are held

	ctx         context.Context // until Close
	end         context.CancelFunc
	work        sync.WaitGroup
	subscribing sync.WaitGroup
	underWay    chan struct{}

	mu        sync.Mutex
	closed    bool
	listening bool
	deaf      [2]error // why a topic is not heard
	held      map[*delivery]bool
	claims    map[string]*delivery // of held, by Item.Claim
	changed   chan struct{}        // closed when there may be more to claim,
	next      time.Time            // before this, when those who Wait look again by themselves

	malformed, takenBack atomic.Uint64
}

// Options are the settings of a Queue. nil, and the zero value, are good defaults.
type Options struct {
	// Subscriptions is how many subscriptions of each topic this process has: as many messages are
	// handed to it at once by brokers that give each subscription one (RabbitMQ). They must share
	// the messages, as they do in a consumer group. Default: 1.
	Subscriptions int
}

// New makes a queue of the two topics topic and topic-later. It subscribes at the first Claim or
// Wait: a process that only writes takes nothing from others. If subscriber can create topics
// (SubscribeInitializer) they are created now. The publisher stays the caller's, to be closed after
// the queue; the subscriber is the queue's. Where nobody claims it may be nil.
func New(publisher message.Publisher, subscriber message.Subscriber, topic string, options *Options) (*Queue, error) {
	if publisher == nil || topic == "" {
		return nil, errors.New("watermillqueue: the publisher is nil, or there is no topic")
	}
	if options == nil {
		options = &Options{}
	}
	if options.Subscriptions < 0 {
		return nil, fmt.Errorf("watermillqueue: Options.Subscriptions %d: negative", options.Subscriptions)
	}
	room := maxHeld
	q := &Queue{
		publisher: publisher, subscriber: subscriber, topics: [2]string{topic, topic + "-later"}, subscriptions: max(options.Subscriptions, 1),
		room:     [2]chan struct{}{make(chan struct{}, room), make(chan struct{}, room)},
		underWay: make(chan struct{}, maxUnderWay), held: map[*delivery]bool{}, claims: map[string]*delivery{}, changed: make(chan struct{}),
	}
	if s, ok := subscriber.(message.SubscribeInitializer); ok {
		for _, topic := range q.topics {
			if err := s.SubscribeInitialize(topic); err != nil {
				return nil, fmt.Errorf("watermillqueue: topic %q: %w", topic, err)
			}
		}
	}
	q.ctx, q.end = context.WithCancel(context.Background())
	return q, nil
}

// Put publishes items, each in a message. After nil the broker has them all. If ctx ends before the
// broker has answered, as when it cannot be reached, they may be there or not. After and Again are
// a day at most. Items that are put twice are done twice.
func (q *Queue) Put(ctx context.Context, items ...consistency.Item) error {
	notes, err := newNotes(items, time.Now())
	if err != nil {
		return err
	}
	return q.publish(ctx, notes, func(int) {})
}

// publish returns nil when the broker has accepted all notes, and tells of each.
func (q *Queue) publish(ctx context.Context, notes []*note, accepted func(i int)) error {
	messages := make([]*message.Message, len(notes))
	for i, n := range notes {
		var err error
		if messages[i], err = n.message(); err != nil {
			return err
		}
	}
	results := make(chan error, len(notes))
	for i, n := range notes {
		if err := q.begin(ctx); err != nil {
			return err
		}
		go func() {
			defer q.work.Done()
			defer func() { <-q.underWay }()
			err := q.publisher.Publish(q.topicOf(n), messages[i]) // it knows no ctx
			if err == nil {
				accepted(i) // also when nobody waits any more
			}
			results <- err
		}()
	}
	var failed error
	for range notes {
		select {
		case err := <-results:
			failed = errors.Join(failed, err)
		case <-ctx.Done():
			return fmt.Errorf("watermillqueue: publish: %w", ctx.Err())
		}
	}
	if failed != nil {
		return fmt.Errorf("watermillqueue: publish: %w", failed)
	}
	return nil
}

// begin waits until another publication may begin, and counts it as work.
func (q *Queue) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case q.underWay <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		<-q.underWay
		return errClosed
	}
	q.work.Add(1)
	return nil
}

func (q *Queue) topicOf(n *note) string {
	if n.After > 0 {
		return q.topics[1]
	}
	return q.topics[0]
}

// Claim returns what has been received and is due. If a topic cannot be subscribed, and there is
// nothing else, the error says why; it is tried again each second.
func (q *Queue) Claim(ctx context.Context, limit int, life time.Duration) ([]consistency.Item, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.listen(); err != nil {
		return nil, err
	}
	now := time.Now()
	var due []*delivery
	for d := range q.held {
		switch {
		case now.Before(d.taken):
		case d.message.Context().Err() != nil: // nobody hears its acknowledgement any more
			q.forget(d)
			d.message.Nack()
			q.takenBack.Add(1)
		case !now.Before(d.at):
			due = append(due, d)
		}
	}
	if len(due) == 0 {
		return nil, errors.Join(q.deaf[:]...)
	}
	slices.SortFunc(due, func(a, b *delivery) int { return a.at.Compare(b.at) })
	var items []consistency.Item
	for _, d := range due[:min(len(due), max(limit, 0))] {
		delete(q.claims, d.claim)
		d.claim, d.taken = watermill.NewUUID(), now.Add(life)
		q.claims[d.claim] = d
		items = append(items, d.item(now))
	}
	return items, nil
}

// Done acknowledges the messages of items. Only what was claimed from this Queue can be removed.
func (q *Queue) Done(ctx context.Context, items ...consistency.Item) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, item := range items {
		q.acknowledge(q.claims[item.Claim])
	}
	return nil
}

// Later publishes items as they are now, and acknowledges the messages that they came in once the
// broker has accepted the new ones. Items that it has not accepted are kept here as they are now,
// and an error returned; should this process be killed, they come again as they were.
func (q *Queue) Later(ctx context.Context, items ...consistency.Item) error {
	now := time.Now()
	all, err := newNotes(items, now)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	var old []*delivery
	var notes []*note
	q.mu.Lock()
	for i, item := range items {
		if d := q.claims[item.Claim]; d != nil {
			all[i].Created = d.note.Created
			d.note, d.at = all[i], now.Add(all[i].After)
			old, notes = append(old, d), append(notes, all[i])
		}
	}
	q.mu.Unlock()
	accepted := func(i int) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.acknowledge(old[i])
	}
	if err = q.publish(ctx, notes, accepted); err != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, d := range old {
			d.taken = time.Time{}
		}
		q.change()
	}
	return err
}

// Wait returns when something may be due, or ctx ends.
func (q *Queue) Wait(ctx context.Context) {
	for {
		q.mu.Lock()
		if q.listen() != nil {
			q.mu.Unlock()
			return
		}
		changed, wait := q.changed, time.Hour
		if errors.Join(q.deaf[:]...) != nil {
			wait = respite // for Claim to say so
		}
		for d := range q.held {
			wait = min(wait, max(time.Until(d.at), time.Until(d.taken)))
		}
		q.next = time.Now().Add(wait)
		q.mu.Unlock()
		select {
		case <-changed:
			continue
		case <-time.After(wait):
		case <-q.ctx.Done():
		case <-ctx.Done():
		}
		return
	}
}

// Depth tells what this process has received, and not done.
func (q *Queue) Depth(ctx context.Context) (consistency.Depth, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	depth, now := consistency.Depth{Items: len(q.held)}, time.Now()
	for d := range q.held {
		if !now.Before(d.taken) && !now.Before(d.at) {
			depth.Due++
		}
		depth.Oldest = max(depth.Oldest, d.age(now))
	}
	return depth, ctx.Err()
}

// Stats are counters since New.
type Stats struct {
	// Malformed messages were no items. They are acknowledged, and forgotten.
	Malformed uint64

	// TakenBack messages were held here for so long that the broker gives them again, or their
	// subscription has ended.
	TakenBack uint64
}

// Stats returns the counters.
func (q *Queue) Stats() Stats {
	return Stats{Malformed: q.malformed.Load(), TakenBack: q.takenBack.Load()}
}

// Close closes the queue and its subscriber, and returns the subscriber's error. It returns all
// messages that the queue holds, or receives until the subscriber is closed, to the broker (Nack),
// and waits for publications in progress. Stop the Relay first: items that it has claimed are
// otherwise done twice. A subscriber of watermill-nats must be drained first; see the package's
// comment.
func (q *Queue) Close() error {
	q.mu.Lock()
	q.closed = true
	for d := range q.held {
		q.forget(d)
		d.message.Nack()
	}
	q.mu.Unlock()
	var err error
	if q.subscriber != nil {
		q.subscribing.Wait()       // for what subscribers cannot stand is a Subscribe beside a Close
		err = q.subscriber.Close() // not by the subscriptions' ctx: those of NATS may then send on a closed channel
	}
	q.end()
	q.work.Wait()
	return err
}
