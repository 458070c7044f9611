package envelope

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
)

// A Decoder returns the changes in a message: Canal, Maxwell, Debezium, or your own. A message
// may contain no changes. If the Decoder returns an error, the message is parked, and the changes
// that it also returns are processed, such as a Replace of the message's table. A Decoder must
// not retain the message.
type Decoder func(message []byte) ([]event.Change, error)

// A Message is a message from a broker.
type Message struct {
	Payload []byte

	// Ack, if it is not nil, is called once, when all changes of this message and of the earlier
	// ones are processed, or the message is parked. It must not block for long. After a restart of
	// the process, the broker must deliver again all messages that were not acknowledged.
	Ack func()
}

// NewSource returns a Source that reads messages in order. A message that decode cannot read is
// parked (canal.Options.Parking) and acknowledged, so that it does not block later ones. The
// Consumer needs no checkpoint (nil), because the broker keeps the position through
// acknowledgements.
//
// Messages that are not acknowledged when Run returns are delivered first by the next Run. So
// nothing is lost with a broker for which an acknowledgement includes all earlier messages. When
// the channel is closed, Run returns an error that Is canal.ErrSetup and canal.ErrSourceClosed, and
// so does the Run of the Consumer.
func NewSource(messages <-chan Message, decode Decoder) canal.Source {
	return &source{messages: messages, decode: decode}
}

type source struct {
	messages <-chan Message
	decode   Decoder

	mu      sync.Mutex
	unacked []*Message // received, and not acknowledged
}

var errClosed = errors.New("the channel of messages is closed")

// Run implements canal.Source.
func (s *source) Run(ctx context.Context, _ event.Need, deliver chan<- event.Batch) error {
	if s.messages == nil || s.decode == nil {
		return fmt.Errorf("envelope: %w: the channel, or the decoder, is nil", canal.ErrSetup)
	}
	send := func(b event.Batch) error {
		select {
		case deliver <- b:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := send(event.Batch{}); err != nil { // Run is ready
		return err
	}
	for _, m := range s.pending() {
		if err := send(s.batch(m)); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m, ok := <-s.messages:
			if !ok {
				return fmt.Errorf("envelope: %w: %w: %w", canal.ErrSetup, canal.ErrSourceClosed, errClosed)
			}
			s.addUnacked(&m)
			if err := send(s.batch(&m)); err != nil {
				return err
			}
		}
	}
}

func (s *source) pending() []*Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.unacked)
}

func (s *source) addUnacked(m *Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unacked = append(s.unacked, m)
}

func (s *source) acknowledge(m *Message) {
	s.mu.Lock()
	i := slices.Index(s.unacked, m)
	if i >= 0 {
		s.unacked = slices.Delete(s.unacked, i, i+1)
	}
	s.mu.Unlock()
	if i >= 0 && m.Ack != nil {
		m.Ack()
	}
}

// batch returns the Batch of a message.
func (s *source) batch(m *Message) event.Batch {
	changes, err := s.read(m.Payload)
	b := event.Batch{Changes: changes, Ack: func() { s.acknowledge(m) }}
	if n := len(changes); n > 0 {
		b.Time = changes[n-1].Time
	}
	if err != nil {
		b.Malformed = &event.Malformed{Message: m.Payload, Err: err}
	}
	return b
}

func (s *source) read(message []byte) (changes []event.Change, err error) {
	defer func() {
		if p := recover(); p != nil {
			changes, err = nil, &cacheaside.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return s.decode(message)
}
