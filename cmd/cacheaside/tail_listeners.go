package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/retry"
)

// received is a message, or a change of a subscription.
type received struct {
	payload *string
	event   string
	text    string
}

// listeners are the subscriptions to all masters. Each announcement is sent to all of them, but a
// master may be cut off from the others without notice.
type listeners struct {
	*tool
	rdb     redis.UniversalClient
	topic   string
	events  chan<- received
	running sync.WaitGroup

	mu   sync.Mutex
	open map[string]context.CancelFunc // by address
}

const (
	pause     = 500 * time.Millisecond // before a new attempt to subscribe
	lookAgain = 2 * time.Second        // between lookups of the masters
)

// begin subscribes to all masters, or returns an error.
func (l *listeners) begin(ctx context.Context) error {
	l.open = make(map[string]context.CancelFunc)
	limited, cancel := l.limited(ctx)
	defer cancel()
	nodes, err := masters(limited, l.rdb)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		sub, err := l.subscribe(limited, node)
		if err != nil {
			return err
		}
		l.start(ctx, node, sub)
	}
	if _, cluster := l.rdb.(*redis.ClusterClient); cluster {
		l.running.Go(func() { l.follow(ctx) })
	}
	return nil
}

// follow subscribes to new masters, and unsubscribes from former ones.
func (l *listeners) follow(ctx context.Context) {
	for retry.Sleep(ctx, lookAgain) == nil {
		limited, cancel := l.limited(ctx)
		nodes, err := masters(limited, l.rdb)
		cancel()
		if err != nil {
			continue // the existing subscriptions report failures
		}
		now := make(map[string]bool)
		for _, node := range nodes {
			now[node.Options().Addr] = true
			l.start(ctx, node, nil)
		}
		l.mu.Lock()
		for addr, end := range l.open {
			if !now[addr] {
				end()
				delete(l.open, addr)
			}
		}
		l.mu.Unlock()
	}
}

func (l *listeners) start(ctx context.Context, node *redis.Client, sub *redis.PubSub) {
	addr := node.Options().Addr
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[addr] != nil {
		return
	}
	ctx, end := context.WithCancel(ctx)
	l.open[addr] = end
	l.running.Go(func() { l.keep(ctx, node, sub) })
}

// keep receives from one master until ctx ends. sub is nil if there is no subscription.
func (l *listeners) keep(ctx context.Context, node *redis.Client, sub *redis.PubSub) {
	for {
		if sub != nil {
			l.tell(ctx, received{event: "listening", text: "to " + node.Options().Addr})
			err := l.receive(ctx, sub)
			if ctx.Err() != nil {
				return
			}
			l.tell(ctx, received{event: "lost", text: fmt.Sprintf("the subscription to %s; subscribing again: %v",
				node.Options().Addr, err)})
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		limited, cancel := l.limited(ctx)
		sub, _ = l.subscribe(limited, node) // repeated after a failure
		cancel()
	}
}

// subscribe returns when Redis has confirmed the subscription.
func (l *listeners) subscribe(ctx context.Context, node *redis.Client) (*redis.PubSub, error) {
	sub := node.Subscribe(ctx, l.topic)
	if _, err := sub.Receive(ctx); err != nil {
		sub.Close() //nolint:errcheck // nothing is to be done about it
		return nil, err
	}
	return sub, nil
}

// receive returns when the subscription is lost, or when nothing arrives in spite of pings.
func (l *listeners) receive(ctx context.Context, sub *redis.PubSub) error {
	var pinging sync.WaitGroup
	defer pinging.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closing := sync.OnceFunc(func() { sub.Close() }) //nolint:errcheck // nothing is to be done about it
	defer closing()
	defer context.AfterFunc(ctx, closing)()
	silence := max(l.timeout, time.Second)
	pinging.Go(func() {
		for retry.Sleep(ctx, silence/3) == nil {
			sub.Ping(ctx) //nolint:errcheck // then nothing comes back
		}
	})
	once, end := context.WithCancel(ctx)
	end() // with this context go-redis cannot dial; otherwise it would silently reconnect
	for {
		got, err := sub.ReceiveTimeout(once, silence)
		if err != nil {
			return err
		}
		switch m := got.(type) {
		case *redis.Subscription:
			return errors.New("the connection was made anew")
		case *redis.Message:
			l.tell(ctx, received{payload: &m.Payload})
		}
	}
}

func (l *listeners) tell(ctx context.Context, h received) {
	select {
	case l.events <- h:
	case <-ctx.Done():
	}
}

// remembered is how many numbers of a range are kept to recognize announcements received from
// another master.
const remembered = 1 << 14

// numbers are the numbers of the announcements of one range.
type numbers struct {
	last uint64
	seen map[uint64]bool
	ring []uint64
	next int
}

// take records an announcement. fresh is false if it was received before. gap is the number after
// which announcements are missing, or 0. late reports whether its number is smaller than the last
// one.
func (n *numbers) take(previous, number uint64) (fresh bool, gap uint64, late bool) {
	if n.seen[number] {
		return false, 0, false
	}
	if n.seen == nil {
		n.seen, n.ring = make(map[uint64]bool), make([]uint64, remembered)
	}
	delete(n.seen, n.ring[n.next])
	n.seen[number], n.ring[n.next] = true, number
	n.next = (n.next + 1) % remembered
	if late = number < n.last; late {
		return true, 0, true
	}
	if n.last != 0 && previous != n.last {
		gap = n.last
	}
	n.last = number
	return true, gap, false
}
