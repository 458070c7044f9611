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

// Decoder reads a message: Canal, Maxwell, Debezium, or your own. It may find no changes in it. If
// it returns an error the message is parked, and the changes that it returns with it, such as a
// Replace of the message's table, are done nevertheless. It must not keep the message.
type Decoder func(message []byte) ([]event.Change, error)

// Message is what has come from a broker.
type Message struct {
	Payload []byte

	// Ack, if there is one, is called once, when all changes of the message, and of those before
	// it, are done, or it is parked. It must not block for long. Messages that are not acknowledged
	// must come again when the process is started again.
	Ack func()
}

// NewSource makes a Source of messages, in their order. A message that decode cannot read is parked
// (canal.Options.Parking) and acknowledged; it is in nobody's way. The Consumer's checkpoint is
// nil: the broker keeps its own position, by the acknowledgements.
//
// Messages that were not acknowledged when a Run ended are delivered again by the next, before all
// others, so that a broker that takes an acknowledgement for one of all before loses nothing. When
// messages is closed, Run returns an error that Is canal.ErrSetup, and so does the Consumer's.
func NewSource(messages <-chan Message, decode Decoder) canal.Source {
	return &source{messages: messages, decode: decode}
}

type source struct {
	messages <-chan Message
	decode   Decoder

	mu      sync.Mutex
	unacked []*Message // taken, and not acknowledged
}

var errClosed = errors.New("the channel of messages is closed")

// Run is that of canal.Source.
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
	if err := send(event.Batch{}); err != nil { // it can begin
		return err
	}
	for _, m := range s.unfinished() {
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
				return fmt.Errorf("envelope: %w: %w", canal.ErrSetup, errClosed)
			}
			s.hold(&m)
			if err := send(s.batch(&m)); err != nil {
				return err
			}
		}
	}
}

func (s *source) unfinished() []*Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.unacked)
}

func (s *source) hold(m *Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unacked = append(s.unacked, m)
}

func (s *source) acknowledge(m *Message) {
	s.mu.Lock()
	at := slices.Index(s.unacked, m)
	if at >= 0 {
		s.unacked = slices.Delete(s.unacked, at, at+1)
	}
	s.mu.Unlock()
	if at >= 0 && m.Ack != nil {
		m.Ack()
	}
}

// batch is what a message says.
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
