package watermillqueue

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/cacheaside/cacheaside/consistency"
)

// respite is before a topic is subscribed again.
const respite = time.Second

// delivery is a message that is not acknowledged yet.
type delivery struct {
	note    *note
	message *message.Message
	topic   int
	at      time.Time // when it is due
	claim   string
	taken   time.Time // until when it is claimed
}

func (d *delivery) item(now time.Time) consistency.Item {
	n := d.note
	return consistency.Item{ID: n.ID, Claim: d.claim, Key: n.key(), Admit: !n.Any, Reload: n.Reload, Attempts: n.Attempts, Again: n.Again, Age: d.age(now)}
}

func (d *delivery) age(now time.Time) time.Duration {
	return max(now.Sub(time.Unix(0, d.note.Created)), 0)
}

// listen begins to hear. The caller has the lock, as that of the next three.
func (q *Queue) listen() error {
	switch {
	case q.closed:
		return errClosed
	case q.subscriber == nil:
		return errors.New("watermillqueue: there is no subscriber")
	case !q.listening:
		q.listening = true
		for i := range len(q.topics) * q.subscriptions {
			q.work.Go(func() { q.hear(i % len(q.topics)) })
		}
	}
	return nil
}

// change wakes those who Wait.
func (q *Queue) change() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// forget makes room for another.
func (q *Queue) forget(d *delivery) {
	delete(q.held, d)
	delete(q.claims, d.claim)
	<-q.room[d.topic]
}

// acknowledge forgets what is done, if it is still held.
func (q *Queue) acknowledge(d *delivery) {
	if q.held[d] {
		q.forget(d)
		d.message.Ack()
	}
}

// hear receives what comes by a topic until Close.
func (q *Queue) hear(topic int) {
	for q.ctx.Err() == nil {
		messages, err := q.subscribe(topic)
		q.hears(topic, err)
		if err == nil {
			q.receive(topic, messages)
			q.hears(topic, errors.New("the subscription has ended"))
		}
		select {
		case <-time.After(respite):
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

func (q *Queue) hears(topic int, err error) {
	if err != nil {
		err = fmt.Errorf("watermillqueue: topic %q: %w", q.topics[topic], err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.deaf[topic] = err
	q.change()
}

// receive takes no more than there is room for: the rest stays in the broker.
func (q *Queue) receive(topic int, messages <-chan *message.Message) {
	for {
		select {
		case q.room[topic] <- struct{}{}:
		case <-q.ctx.Done():
			return
		}
		select {
		case m, ok := <-messages:
			if !ok {
				<-q.room[topic]
				return
			}
			q.take(topic, m)
		case <-q.ctx.Done():
			return
		}
	}
}

// take holds a message until it is done. After Close it returns the message to the broker.
func (q *Queue) take(topic int, m *message.Message) {
	n, err := decode(m.Payload)
	if err != nil {
		q.malformed.Add(1)
		<-q.room[topic]
		m.Ack()
		return
	}
	sent := time.Unix(0, n.At)
	if now := time.Now(); sent.After(now) {
		sent = now // by a clock that is ahead: it is not to wait for longer than it was to
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		<-q.room[topic]
		m.Nack() // a subscriber that waits for its messages waits for this one
		return
	}
	d := &delivery{note: n, message: m, topic: topic, at: sent.Add(n.After)}
	q.held[d] = true
	if d.at.Before(q.next) {
		q.change()
	}
}
