package lock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// wakes is how a caller that waits hears that a lock was released: by one subscription for the
// process.
type wakes struct {
	rdb  redis.UniversalClient
	conn *conn.Conn

	ctx  context.Context // ends with close
	stop context.CancelFunc
	todo chan struct{} // holds one if there are channels to subscribe to, or to leave

	mu    sync.Mutex
	wakes map[string]*wake // by channel
	runs  bool
}

// wake is one channel. It is kept for a while after the last has left, for where locks are waited
// for they are again.
type wake struct {
	all     *wakes
	c       chan struct{} // holds one if there is reason to ask for the lock
	waiting int           // one as a rule: a Locker has one contender for each name
	left    time.Time     // when the last has left
	asked   bool
	hears   bool
}

const linger = 5 * time.Second

func (w *wakes) init(rdb redis.UniversalClient, c *conn.Conn) {
	w.rdb, w.conn = rdb, c
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.todo, w.wakes = make(chan struct{}, 1), make(map[string]*wake)
}

func (w *wakes) close() { w.stop() }

// hears tells whether a release of now on would be heard, so that a contender may ask to be told.
func (w *wakes) hears(channel string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.wakes[channel]
	return k != nil && k.hears
}

// watch has c of the wake it returns tell of releases, and first of all when it begins to hear.
func (w *wakes) watch(channel string) *wake {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.wakes[channel]
	if k == nil {
		k = &wake{all: w, c: make(chan struct{}, 1)}
		w.wakes[channel] = k
		signal(w.todo)
	}
	k.waiting++
	if !w.runs {
		w.runs = w.conn.Apart(w.run)
	}
	return k
}

func (k *wake) leave() {
	if k == nil {
		return
	}
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	k.waiting--
	k.left = time.Now()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run keeps the subscription. A connection that is lost go-redis makes anew, and confirms all its
// channels again: what was published meanwhile is lost, so that wakes all.
func (w *wakes) run() {
	sub := w.rdb.Subscribe(w.ctx)
	heard := sub.ChannelWithSubscriptions(redis.WithChannelSize(1000))
	var commands sync.WaitGroup
	commands.Go(func() { w.command(sub) })
	for {
		select {
		case m, ok := <-heard:
			if !ok {
				heard = nil
				continue
			}
			switch m := m.(type) {
			case *redis.Subscription:
				w.told(m.Channel, m.Kind)
			case *redis.Message:
				w.told(m.Channel, "")
			}
		case <-w.ctx.Done():
			sub.Close() //nolint:errcheck // nothing is to be done about it
			commands.Wait()
			return
		}
	}
}

// told wakes the callers that wait for a channel.
func (w *wakes) told(channel, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.wakes[channel]
	if k == nil {
		return
	}
	k.hears = kind != "unsubscribe"
	signal(k.c)
}

// command subscribes and unsubscribes, on a goroutine of its own since that may wait for a
// connection.
func (w *wakes) command(sub *redis.PubSub) {
	tick := time.NewTicker(linger)
	defer tick.Stop()
	for {
		select {
		case <-w.todo:
		case <-tick.C:
		case <-w.ctx.Done():
			return
		}
		more, fewer := w.changes()
		ctx, cancel := context.WithTimeout(w.ctx, w.conn.Timeout())
		if len(more) > 0 && sub.Subscribe(ctx, more...) != nil {
			w.again(more)
		}
		if len(fewer) > 0 {
			sub.Unsubscribe(ctx, fewer...) //nolint:errcheck // what is still heard of is dropped
		}
		cancel()
	}
}

// changes are the channels to subscribe to, and those that nobody has needed for a while.
func (w *wakes) changes() (more, fewer []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for channel, k := range w.wakes {
		switch {
		case k.waiting == 0 && time.Since(k.left) > linger:
			delete(w.wakes, channel)
			fewer = append(fewer, channel)
		case !k.asked:
			k.asked = true
			more = append(more, channel)
		}
	}
	return more, fewer
}

// again notes that channels are still to be subscribed to, at the next tick.
func (w *wakes) again(channels []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, channel := range channels {
		if k := w.wakes[channel]; k != nil {
			k.asked = false
		}
	}
}
