package redislock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// Wakes wakes callers that wait for a lock when it is released. All callers of the process share
// its subscriptions. It is safe for concurrent use.
type Wakes struct {
	rdb  redis.UniversalClient
	conn *conn.Conn

	ctx  context.Context // ends with Close
	stop context.CancelFunc

	mu            sync.Mutex
	subscriptions []*subscription // normally one; see maxChannels
}

// maxChannels is the maximum number of channels of one subscription. When go-redis connects again,
// it subscribes to all of them by one command, and some services limit its arguments: 3,999 in
// Amazon ElastiCache Serverless.
const maxChannels = 3000

// subscription receives the messages of some channels. Wakes.mu guards all but wakes and pending.
type subscription struct {
	wakes   *Wakes
	pending chan struct{} // signals command that there are channels to subscribe to

	channels    map[string]*Wake
	toSubscribe []string
	running     bool
}

// Wake is the Redis channel of one lock. It is kept for a while after the last waiter has left,
// because such locks are often waited for again.
type Wake struct {
	C chan struct{} // has one element if the caller should request the lock again

	wakes      *Wakes
	waiting    int       // number of waiters; normally at most one, the Locker's contender
	idleSince  time.Time // when the last waiter left
	subscribed bool
}

const linger = 5 * time.Second

// NewWakes returns the Wakes of a client and its Conn. It does no I/O before the first Watch.
func NewWakes(rdb redis.UniversalClient, c *conn.Conn) *Wakes {
	w := &Wakes{rdb: rdb, conn: c}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// Close ends the subscriptions. Close of the Conn waits for that.
func (w *Wakes) Close() { w.stop() }

// Retry calls try in the background, with a timeout for each call, until it returns nil or life
// has passed. After Close it continues for one timeout, because a context and its Locker often
// end together. Close of the Conn waits for that.
func (w *Wakes) Retry(life, timeout time.Duration, try func(ctx context.Context) error) {
	w.conn.Apart(func() {
		ctx, cancel := context.WithTimeout(context.Background(), life)
		defer cancel()
		defer context.AfterFunc(w.ctx, func() { time.AfterFunc(timeout, cancel) })()
		for delay := 5 * time.Millisecond; ; delay = min(2*delay, time.Second) {
			once, end := context.WithTimeout(ctx, timeout)
			err := try(once)
			end()
			if err == nil || retry.Sleep(ctx, delay) != nil {
				return
			}
		}
	})
}

// Subscribed reports whether the channel is subscribed to. If it is, a contender may ask the
// holder to announce the release.
func (w *Wakes) Subscribed(channel string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.find(channel)
	return s != nil && s.channels[channel].subscribed
}

// Watch returns the Wake of a channel. Its C receives when the subscription starts, and at each
// release after that. The caller must call Leave.
func (w *Wakes) Watch(channel string) *Wake {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.find(channel)
	if s == nil {
		s = w.roomy()
		s.channels[channel] = &Wake{wakes: w, C: make(chan struct{}, 1)}
		s.toSubscribe = append(s.toSubscribe, channel)
		signal(s.pending)
	}
	if !s.running {
		s.running = w.conn.Apart(s.run)
	}
	k := s.channels[channel]
	k.waiting++
	return k
}

// find returns the subscription that has a channel, or nil.
func (w *Wakes) find(channel string) *subscription {
	for _, s := range w.subscriptions {
		if s.channels[channel] != nil {
			return s
		}
	}
	return nil
}

// roomy returns a subscription that can have one more channel.
func (w *Wakes) roomy() *subscription {
	for _, s := range w.subscriptions {
		if len(s.channels) < maxChannels {
			return s
		}
	}
	s := &subscription{wakes: w, pending: make(chan struct{}, 1), channels: make(map[string]*Wake)}
	w.subscriptions = append(w.subscriptions, s)
	return s
}

// Leave ends one Watch. It does nothing on a nil Wake.
func (w *Wake) Leave() {
	if w == nil {
		return
	}
	w.wakes.mu.Lock()
	defer w.wakes.mu.Unlock()
	w.waiting--
	w.idleSince = time.Now()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run receives messages until Close. go-redis reconnects on its own and confirms all channels
// again. Messages may have been lost in between, so each confirmation wakes all waiters of its
// channel.
func (s *subscription) run() {
	w := s.wakes
	sub := w.rdb.Subscribe(w.ctx)
	messages := sub.ChannelWithSubscriptions(redis.WithChannelSize(1000))
	var commands sync.WaitGroup
	commands.Go(func() { s.command(sub) })
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				messages = nil
				continue
			}
			switch m := m.(type) {
			case *redis.Subscription:
				s.notify(m.Channel, m.Kind)
			case *redis.Message:
				s.notify(m.Channel, "")
			}
		case <-w.ctx.Done():
			sub.Close() //nolint:errcheck // the subscription is not used again
			commands.Wait()
			return
		}
	}
}

// notify wakes the callers that wait for a channel.
func (s *subscription) notify(channel, kind string) {
	s.wakes.mu.Lock()
	defer s.wakes.mu.Unlock()
	k := s.channels[channel]
	if k == nil {
		return
	}
	k.subscribed = kind != "unsubscribe"
	signal(k.C)
}

// command subscribes and unsubscribes. It runs on its own goroutine because it may wait for a
// connection.
func (s *subscription) command(sub *redis.PubSub) {
	w := s.wakes
	tick := time.NewTicker(linger)
	defer tick.Stop()
	for {
		select {
		case <-s.pending:
		case <-tick.C:
		case <-w.ctx.Done():
			return
		}
		subscribe, unsubscribe := s.changes()
		ctx, cancel := context.WithTimeout(w.ctx, w.conn.Timeout())
		if len(subscribe) > 0 {
			sub.Subscribe(ctx, subscribe...) //nolint:errcheck // go-redis subscribes again when it has a connection
		}
		if len(unsubscribe) > 0 {
			sub.Unsubscribe(ctx, unsubscribe...) //nolint:errcheck // later messages are ignored
		}
		cancel()
	}
}

// changes returns the channels to subscribe to, and those that have been idle for longer than
// linger.
func (s *subscription) changes() (subscribe, unsubscribe []string) {
	s.wakes.mu.Lock()
	defer s.wakes.mu.Unlock()
	for channel, k := range s.channels {
		if k.waiting == 0 && time.Since(k.idleSince) > linger {
			delete(s.channels, channel)
			unsubscribe = append(unsubscribe, channel)
		}
	}
	subscribe, s.toSubscribe = s.toSubscribe, nil
	return subscribe, unsubscribe
}
