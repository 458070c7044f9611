package watermillqueue_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// fake is a broker that gives each subscription one message at a time, in order, and drops what it
// has seen, by UUID.
type fake struct {
	mu      sync.Mutex
	topics  map[string][]*message.Message
	seen    map[string]bool
	changed chan struct{}
	work    sync.WaitGroup
	ctx     context.Context
	end     context.CancelFunc

	refuse bool          // publications
	hang   chan struct{} // publications, until it is closed
	cut    bool          // subscriptions, as soon as they are made
	given  map[string]context.CancelFunc
}

func newFake(t testing.TB) *fake {
	f := &fake{topics: map[string][]*message.Message{}, seen: map[string]bool{}, changed: make(chan struct{}),
		given: map[string]context.CancelFunc{}}
	f.ctx, f.end = context.WithCancel(context.Background())
	t.Cleanup(func() { f.Close() })
	return f
}

var errRefused = errors.New("refused")

func (f *fake) Publish(topic string, messages ...*message.Message) error {
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse {
		return errRefused
	}
	for _, m := range messages {
		if !f.seen[m.UUID] {
			f.seen[m.UUID] = true
			f.topics[topic] = append(f.topics[topic], m)
		}
	}
	f.change()
	return nil
}

func (f *fake) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// set changes how it behaves.
func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// left is how many messages are in the topics.
func (f *fake) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, messages := range f.topics {
		n += len(messages)
	}
	return n
}

func (f *fake) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return nil, errRefused
	}
	out := make(chan *message.Message)
	if f.cut {
		close(out)
		return out, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(f.ctx, cancel)
	f.work.Go(func() {
		defer close(out)
		for f.give(ctx, topic, out) {
		}
	})
	return out, nil
}

// give gives the first message of the topic, and waits for what becomes of it. It stays the first
// until it is acknowledged.
func (f *fake) give(ctx context.Context, topic string, out chan<- *message.Message) bool {
	f.mu.Lock()
	messages, changed := f.topics[topic], f.changed
	if len(messages) == 0 {
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		return ctx.Err() == nil
	}
	first := messages[0]
	m := first.Copy()
	mctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.SetContext(mctx)
	f.given[topic] = cancel
	f.mu.Unlock()
	select {
	case out <- m:
	case <-ctx.Done():
		return false
	}
	select {
	case <-m.Acked():
		f.mu.Lock()
		defer f.mu.Unlock()
		f.topics[topic] = slices.DeleteFunc(f.topics[topic], func(o *message.Message) bool { return o == first })
	case <-m.Nacked():
	case <-mctx.Done():
	}
	return ctx.Err() == nil
}

// takeBack has the message of a topic that is not acknowledged given again, as when it was held for
// too long.
func (f *fake) takeBack(topic string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.given[topic]()
}

func (f *fake) Close() error {
	f.end()
	f.work.Wait()
	return nil
}
