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

// New makes a Source of the messages of topics, as decode reads them: envelope.Canal,
// envelope.Maxwell, envelope.Debezium, or your own. A message that decode cannot read is parked
// (canal.Options.Parking) and acknowledged. New does no I/O; Run does.
//
// The subscriber stays yours. Close it when the Consumer's Run has returned: until then it may hold
// messages that nobody does.
func New(subscriber message.Subscriber, decode envelope.Decoder, topics ...string) (canal.Source, error) {
	switch {
	case subscriber == nil || decode == nil:
		return nil, errors.New("watermillsource: the subscriber, or the decoder, is nil")
	case len(topics) == 0:
		return nil, errors.New("watermillsource: no topics")
	}
	s := &source{subscriber: subscriber, topics: topics, messages: make(chan envelope.Message), heard: make(map[string]bool, len(topics)), end: func(error) {}}
	for _, t := range topics {
		if t == "" || s.heard[t] {
			return nil, fmt.Errorf("watermillsource: the topic %q is empty, or listed twice", t)
		}
		s.heard[t] = true
	}
	clear(s.heard)
	s.inner = envelope.NewSource(s.messages, decode)
	return s, nil
}

type source struct {
	subscriber message.Subscriber
	topics     []string
	messages   chan envelope.Message
	inner      canal.Source

	mu    sync.Mutex
	heard map[string]bool // topics with a subscription
	end   func(error)     // of the Run that is under way
}

// Run is that of canal.Source. Subscriptions outlive it: subscribers of NATS cannot stand that one
// ends by its ctx (https://github.com/ThreeDotsLabs/watermill-nats sends to the channel that it
// then closes).
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

func (s *source) subscribe(ctx context.Context, topic string) error {
	s.mu.Lock()
	heard := s.heard[topic]
	s.mu.Unlock()
	if heard {
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
	s.heard[topic] = true
	s.mu.Unlock()
	go s.hear(topic, messages)
	return nil
}

// hear hands on what comes by a topic until its subscription ends, with the subscriber.
func (s *source) hear(topic string, messages <-chan *message.Message) {
	for m := range messages {
		select {
		case s.messages <- envelope.Message{Payload: m.Payload, Ack: func() { m.Ack() }}:
		case <-m.Context().Done(): // the broker has taken it back, and gives it again
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard[topic] = false
	s.end(fmt.Errorf("watermillsource: the subscription to topic %q has ended", topic))
}
