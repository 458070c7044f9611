package redislock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// Wakes wakes callers that wait for a lock when it is released. It uses one subscription for the
// whole process. It is safe for concurrent use.
type Wakes struct {
	rdb  redis.UniversalClient
	conn *conn.Conn

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	pending chan struct{} // signals command that there are channels to subscribe to

	mu          sync.Mutex
	wakes       map[string]*Wake // by channel
	toSubscribe []string         // channels to subscribe to
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
	w := &Wakes{rdb: rdb, conn: c, pending: make(chan struct{}, 1), wakes: make(map[string]*Wake)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// Close ends the subscription. Close of the Conn waits for that.
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
	k := w.wakes[channel]
	return k != nil && k.subscribed
}

// Watch returns the Wake of a channel. Its C receives when the subscription starts, and at each
// release after that. The caller must call Leave.
func (w *Wakes) Watch(channel string) *Wake {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.wakes[channel]
	if k == nil {
		k = &Wake{wakes: w, C: make(chan struct{}, 1)}
		w.wakes[channel] = k
		w.toSubscribe = append(w.toSubscribe, channel)
		signal(w.pending)
	}
	k.waiting++
	if !w.running {
		w.running = w.conn.Apart(w.run)
	}
	return k
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
func (w *Wakes) run() {
	sub := w.rdb.Subscribe(w.ctx)
	messages := sub.ChannelWithSubscriptions(redis.WithChannelSize(1000))
	var commands sync.WaitGroup
	commands.Go(func() { w.command(sub) })
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				messages = nil
				continue
			}
			switch m := m.(type) {
			case *redis.Subscription:
				w.notify(m.Channel, m.Kind)
			case *redis.Message:
				w.notify(m.Channel, "")
			}
		case <-w.ctx.Done():
			sub.Close() //nolint:errcheck // the subscription is not used again
			commands.Wait()
			return
		}
	}
}

// notify wakes the callers that wait for a channel.
func (w *Wakes) notify(channel, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.wakes[channel]
	if k == nil {
		return
	}
	k.subscribed = kind != "unsubscribe"
	signal(k.C)
}

// command subscribes and unsubscribes. It runs on its own goroutine because it may wait for a
// connection.
func (w *Wakes) command(sub *redis.PubSub) {
	tick := time.NewTicker(linger)
	defer tick.Stop()
	for {
		select {
		case <-w.pending:
		case <-tick.C:
		case <-w.ctx.Done():
			return
		}
		subscribe, unsubscribe := w.changes()
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
func (w *Wakes) changes() (subscribe, unsubscribe []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for channel, k := range w.wakes {
		if k.waiting == 0 && time.Since(k.idleSince) > linger {
			delete(w.wakes, channel)
			unsubscribe = append(unsubscribe, channel)
		}
	}
	subscribe, w.toSubscribe = w.toSubscribe, nil
	return subscribe, unsubscribe
}
