package watermillsource

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/envelope"
	"github.com/cacheaside/cacheaside/canal/event"
)

// New returns a Source of the messages of topics, which decode reads: envelope.Canal,
// envelope.Maxwell, envelope.Debezium, or your own Decoder. A message that decode cannot read is
// parked (canal.Options.Parking) and acknowledged. New does no I/O; Run does.
//
// The caller closes the subscriber, after the Consumer's Run has returned. Until it is closed, it
// may hold messages that are not processed.
func New(subscriber message.Subscriber, decode envelope.Decoder, topics ...string) (canal.Source, error) {
	switch {
	case subscriber == nil || decode == nil:
		return nil, errors.New("watermillsource: the subscriber, or the decoder, is nil")
	case len(topics) == 0:
		return nil, errors.New("watermillsource: no topics")
	}
	s := &source{subscriber: subscriber, topics: topics, messages: make(chan envelope.Message),
		subscribed: make(map[string]bool, len(topics)), end: func(error) {}}
	for _, t := range topics {
		if t == "" || s.subscribed[t] {
			return nil, fmt.Errorf("watermillsource: the topic %q is empty, or listed twice", t)
		}
		s.subscribed[t] = true
	}
	clear(s.subscribed)
	s.inner = envelope.NewSource(s.messages, decode)
	return s, nil
}

type source struct {
	subscriber message.Subscriber
	topics     []string
	messages   chan envelope.Message
	inner      canal.Source

	mu         sync.Mutex
	subscribed map[string]bool // the topics with a subscription
	end        func(error)     // cancels the current Run
}

// Run implements canal.Source. Subscriptions outlive it and do not end with its ctx. When the
// context of a NATS subscription ends, https://github.com/ThreeDotsLabs/watermill-nats closes a
// channel while it may still send on it, which panics.
func (s *source) Run(ctx context.Context, need event.Need, deliver chan<- event.Batch) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.end = cancel
	s.mu.Unlock()
	for _, topic := range s.topics {
		if err := s.subscribe(ctx, topic); err != nil {
			return fmt.Errorf("watermillsource: topic %q: %w", topic, err)
		}
	}
	if err := s.inner.Run(ctx, need, deliver); ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// subscribe subscribes to a topic, unless there is a subscription from an earlier Run.
func (s *source) subscribe(ctx context.Context, topic string) error {
	s.mu.Lock()
	subscribed := s.subscribed[topic]
	s.mu.Unlock()
	if subscribed {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	messages, err := s.subscriber.Subscribe(context.WithoutCancel(ctx), topic)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.subscribed[topic] = true
	s.mu.Unlock()
	go s.forward(topic, messages)
	return nil
}

// forward passes the messages of a topic on until its subscription ends, because the subscriber
// was closed.
func (s *source) forward(topic string, messages <-chan *message.Message) {
	for m := range messages {
		select {
		case s.messages <- envelope.Message{Payload: m.Payload, Ack: func() { m.Ack() }}:
		case <-m.Context().Done(): // the broker has withdrawn the message, and delivers it again
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribed[topic] = false
	s.end(fmt.Errorf("watermillsource: the subscription to topic %q has ended", topic))
}
