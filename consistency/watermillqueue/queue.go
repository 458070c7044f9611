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
	maxHeld       = 10_000 // messages per topic
	maxPublishing = 64     // concurrent publications
)

var errClosed = errors.New("watermillqueue: closed")

// A Queue is a consistency.Queue in a message broker. The package comment describes its
// guarantees. It is safe for concurrent use.
type Queue struct {
	publisher     message.Publisher
	subscriber    message.Subscriber
	topics        [2]string // for due items, and for items that wait
	subscriptions int
	slots         [2]chan struct{} // semaphores of the held messages, by topic

	ctx         context.Context // until Close
	cancel      context.CancelFunc
	work        sync.WaitGroup
	subscribing sync.WaitGroup
	publishing  chan struct{}

	mu            sync.Mutex
	closed        bool
	subscribed    bool
	subscribeErrs [2]error // why a topic is not subscribed
	held          map[*delivery]bool
	claims        map[string]*delivery // claimed deliveries, by Item.Claim
	changed       chan struct{}        // closed when there may be more to claim
	nextCheck     time.Time            // when the callers of Wait check again on their own

	malformed, takenBack atomic.Uint64
}

// Options are the settings of a Queue. nil, and the zero value, are good defaults.
type Options struct {
	// Subscriptions is the number of subscriptions of this process to each topic. A broker such as
	// RabbitMQ delivers one message at a time to each subscription, so this is also the number of
	// messages that are processed concurrently. The subscriptions must share the messages, as in a
	// consumer group. Default: 1.
	Subscriptions int
}

// New returns a queue with the topics topic and topic-later. It subscribes at the first call of
// Claim or Wait, so a process that only writes receives no items. If the subscriber can create
// topics (SubscribeInitializer), New creates them. The caller closes the publisher, after the
// queue. Close closes the subscriber, which can be nil in a process that never claims.
func New(publisher message.Publisher, subscriber message.Subscriber, topic string, options *Options) (*Queue, error) {
	if publisher == nil || topic == "" {
		return nil, errors.New("watermillqueue: the publisher is nil, or the topic is empty")
	}
	if options == nil {
		options = &Options{}
	}
	if options.Subscriptions < 0 {
		return nil, fmt.Errorf("watermillqueue: Options.Subscriptions %d: negative", options.Subscriptions)
	}
	capacity := maxHeld
	q := &Queue{
		publisher: publisher, subscriber: subscriber, topics: [2]string{topic, topic + "-later"},
		subscriptions: max(options.Subscriptions, 1),
		slots:         [2]chan struct{}{make(chan struct{}, capacity), make(chan struct{}, capacity)},
		publishing:    make(chan struct{}, maxPublishing),
		held:          map[*delivery]bool{}, claims: map[string]*delivery{}, changed: make(chan struct{}),
	}
	if s, ok := subscriber.(message.SubscribeInitializer); ok {
		for _, topic := range q.topics {
			if err := s.SubscribeInitialize(topic); err != nil {
				return nil, fmt.Errorf("watermillqueue: topic %q: %w", topic, err)
			}
		}
	}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q, nil
}

// Put publishes items, each in a message. If it returns nil, the broker has accepted all of them.
// If ctx ends first, for example because the broker is unreachable, the items may have been
// published. After and Again are at most a day. Items that are put twice are executed twice.
func (q *Queue) Put(ctx context.Context, items ...consistency.Item) error {
	records, err := newRecords(items, time.Now())
	if err != nil {
		return err
	}
	return q.publish(ctx, records, func(int) {})
}

// publish returns nil when the broker has accepted all records. It calls accepted for each.
func (q *Queue) publish(ctx context.Context, records []*record, accepted func(i int)) error {
	messages := make([]*message.Message, len(records))
	for i, n := range records {
		var err error
		if messages[i], err = n.message(); err != nil {
			return err
		}
	}
	results := make(chan error, len(records))
	for i, n := range records {
		if err := q.begin(ctx); err != nil {
			return err
		}
		go func() {
			defer q.work.Done()
			defer func() { <-q.publishing }()
			err := q.publisher.Publish(q.topicOf(n), messages[i]) // Publish has no ctx
			if err == nil {
				accepted(i) // also after ctx has ended
			}
			results <- err
		}()
	}
	var failed error
	for range records {
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

// begin waits for a free slot for a publication, which Close then waits for.
func (q *Queue) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case q.publishing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		<-q.publishing
		return errClosed
	}
	q.work.Add(1)
	return nil
}

func (q *Queue) topicOf(n *record) string {
	if n.After > 0 {
		return q.topics[1]
	}
	return q.topics[0]
}

// Claim returns items that were received and are due. If there are none and a topic is not
// subscribed, it returns the cause; the queue subscribes again after a second.
func (q *Queue) Claim(ctx context.Context, limit int, life time.Duration) ([]consistency.Item, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.startSubscriptions(); err != nil {
		return nil, err
	}
	now := time.Now()
	var due []*delivery
	for d := range q.held {
		switch {
		case now.Before(d.claimedUntil):
		case d.message.Context().Err() != nil: // its acknowledgement would have no effect
			q.drop(d)
			d.message.Nack()
			q.takenBack.Add(1)
		case !now.Before(d.due):
			due = append(due, d)
		}
	}
	if len(due) == 0 {
		return nil, errors.Join(q.subscribeErrs[:]...)
	}
	slices.SortFunc(due, func(a, b *delivery) int { return a.due.Compare(b.due) })
	var items []consistency.Item
	for _, d := range due[:min(len(due), max(limit, 0))] {
		delete(q.claims, d.claim)
		d.claim, d.claimedUntil = watermill.NewUUID(), now.Add(life)
		q.claims[d.claim] = d
		items = append(items, d.item(now))
	}
	return items, nil
}

// Done acknowledges the messages of items. It has an effect only on items that were claimed from
// this Queue.
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

// Later publishes items in their current state, and acknowledges their previous messages after
// the broker has accepted the new ones. If the broker does not accept an item, Later returns an
// error and this process keeps the item in its current state; if the process is then killed, the
// broker delivers the item in its previous state.
func (q *Queue) Later(ctx context.Context, items ...consistency.Item) error {
	now := time.Now()
	all, err := newRecords(items, now)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	var old []*delivery
	var records []*record
	q.mu.Lock()
	for i, item := range items {
		if d := q.claims[item.Claim]; d != nil {
			all[i].Created = d.record.Created
			d.record, d.due = all[i], now.Add(all[i].After)
			old, records = append(old, d), append(records, all[i])
		}
	}
	q.mu.Unlock()
	accepted := func(i int) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.acknowledge(old[i])
	}
	if err = q.publish(ctx, records, accepted); err != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, d := range old {
			d.claimedUntil = time.Time{}
		}
		q.notify()
	}
	return err
}

// Wait returns when an item may be due, or ctx ends.
func (q *Queue) Wait(ctx context.Context) {
	for {
		q.mu.Lock()
		if q.startSubscriptions() != nil {
			q.mu.Unlock()
			return
		}
		changed, wait := q.changed, time.Hour
		if errors.Join(q.subscribeErrs[:]...) != nil {
			wait = resubscribeDelay // so that Claim can return the error
		}
		for d := range q.held {
			wait = min(wait, max(time.Until(d.due), time.Until(d.claimedUntil)))
		}
		q.nextCheck = time.Now().Add(wait)
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

// Depth describes the items that this process has received and not completed.
func (q *Queue) Depth(ctx context.Context) (consistency.Depth, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	depth, now := consistency.Depth{Items: len(q.held)}, time.Now()
	for d := range q.held {
		if !now.Before(d.claimedUntil) && !now.Before(d.due) {
			depth.Due++
		}
		depth.Oldest = max(depth.Oldest, d.age(now))
	}
	return depth, ctx.Err()
}

// Stats are the counters of a Queue since New.
type Stats struct {
	// Malformed is the number of messages that were not items. They were acknowledged and
	// dropped.
	Malformed uint64

	// TakenBack is the number of messages that this process dropped without completing them,
	// because the broker delivers them again after its timeout, or their subscription has ended.
	TakenBack uint64
}

// Stats returns the counters.
func (q *Queue) Stats() Stats {
	return Stats{Malformed: q.malformed.Load(), TakenBack: q.takenBack.Load()}
}

// Close closes the queue and its subscriber, and returns the subscriber's error. It returns all
// messages that the queue holds, or receives until the subscriber is closed, to the broker
// (Nack), and waits for publications in progress. Stop the Relay first, because items that it has
// claimed are otherwise executed twice. A subscriber of watermill-nats must be drained first; see
// the package comment.
func (q *Queue) Close() error {
	q.mu.Lock()
	q.closed = true
	for d := range q.held {
		q.drop(d)
		d.message.Nack()
	}
	q.mu.Unlock()
	var err error
	if q.subscriber != nil {
		q.subscribing.Wait() // subscribers do not support a Subscribe concurrent with Close
		// This comes before q.cancel: after their ctx has ended, subscriptions of NATS may send on
		// a closed channel.
		err = q.subscriber.Close()
	}
	q.cancel()
	q.work.Wait()
	return err
}
