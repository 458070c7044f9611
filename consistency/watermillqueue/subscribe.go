package watermillqueue

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/cacheaside/cacheaside/consistency"
)

// resubscribeDelay is the pause before another attempt to subscribe to a topic.
const resubscribeDelay = time.Second

// A delivery is a message that is not acknowledged.
type delivery struct {
	record       *record
	message      *message.Message
	topic        int
	due          time.Time // when the item is due
	claim        string
	claimedUntil time.Time // when its claim expires
}

func (d *delivery) item(now time.Time) consistency.Item {
	r := d.record
	return consistency.Item{
		ID: r.ID, Claim: d.claim, Key: r.key(), Inserting: !r.Any, Reload: r.Reload, Attempts: r.Attempts,
		Again: r.Again,
		Age:   d.age(now),
	}
}

func (d *delivery) age(now time.Time) time.Duration {
	return max(now.Sub(time.Unix(0, d.record.Created)), 0)
}

// startSubscriptions subscribes to the topics, unless that was done before. The caller holds
// q.mu, also for notify, drop and acknowledge.
func (q *Queue) startSubscriptions() error {
	switch {
	case q.closed:
		return errClosed
	case q.subscriber == nil:
		return errors.New("watermillqueue: there is no subscriber")
	case !q.subscribed:
		q.subscribed = true
		for i := range len(q.topics) * q.subscriptions {
			q.work.Go(func() { q.consume(i % len(q.topics)) })
		}
	}
	return nil
}

// notify wakes the callers of Wait.
func (q *Queue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// drop removes a delivery and frees its slot.
func (q *Queue) drop(d *delivery) {
	delete(q.held, d)
	delete(q.claims, d.claim)
	<-q.slots[d.topic]
}

// acknowledge acknowledges and drops a delivery, if it is still held.
func (q *Queue) acknowledge(d *delivery) {
	if q.held[d] {
		q.drop(d)
		d.message.Ack()
	}
}

// consume receives the messages of a topic until Close.
func (q *Queue) consume(topic int) {
	for q.ctx.Err() == nil {
		messages, err := q.subscribe(topic)
		q.setSubscribeErr(topic, err)
		if err == nil {
			q.receive(topic, messages)
			q.setSubscribeErr(topic, errors.New("the subscription has ended"))
		}
		select {
		case <-time.After(resubscribeDelay):
		case <-q.ctx.Done():
		}
	}
}

func (q *Queue) subscribe(topic int) (<-chan *message.Message, error) {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil, errClosed
	}
	q.subscribing.Add(1)
	q.mu.Unlock()
	defer q.subscribing.Done()
	return q.subscriber.Subscribe(q.ctx, q.topics[topic])
}

// setSubscribeErr records whether the topic is subscribed, and wakes the callers of Wait.
func (q *Queue) setSubscribeErr(topic int, err error) {
	if err != nil {
		err = fmt.Errorf("watermillqueue: topic %q: %w", q.topics[topic], err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.subscribeErrs[topic] = err
	q.notify()
}

// receive accepts messages while there are free slots: the others stay in the broker.
func (q *Queue) receive(topic int, messages <-chan *message.Message) {
	for {
		select {
		case q.slots[topic] <- struct{}{}:
		case <-q.ctx.Done():
			return
		}
		select {
		case m, ok := <-messages:
			if !ok {
				<-q.slots[topic]
				return
			}
			q.accept(topic, m)
		case <-q.ctx.Done():
			return
		}
	}
}

// accept holds a message until it is acknowledged. After Close it returns the message to the
// broker.
func (q *Queue) accept(topic int, m *message.Message) {
	n, err := decode(m.Payload)
	if err != nil {
		q.malformed.Add(1)
		<-q.slots[topic]
		m.Ack()
		return
	}
	sent := time.Unix(0, n.At)
	if now := time.Now(); sent.After(now) {
		sent = now // the sender's clock is ahead: its item must not wait longer than intended
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		<-q.slots[topic]
		m.Nack() // the subscriber may wait for this message before it closes
		return
	}
	d := &delivery{record: n, message: m, topic: topic, due: sent.Add(n.After)}
	q.held[d] = true
	if d.due.Before(q.nextCheck) {
		q.notify()
	}
}
