package watermillsource_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/envelope"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/canal/watermillsource"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// updated is Maxwell's message of a row that was changed.
func updated(table string, id int) *message.Message {
	return message.NewMessage(watermill.NewUUID(),
		fmt.Appendf(nil,
			`{"database":"shop","table":%q,"type":"update","ts":1477053234,"data":{"id":%d,"n":2},"old":{"n":1}}`,
			table, id))
}

// side is a process with a Consumer of two tables.
type side struct {
	users    *cacheaside.Loader[int64, int]
	consumer *canal.Consumer

	mu      sync.Mutex
	version int
	seen    []string // by a handler
	parked  int
	tell    func(string)
}

func newSide(t testing.TB, s canal.Source) *side {
	t.Helper()
	x := &side{version: 1}
	cache, err := cacheaside.NewLocal(nil)
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	x.users, err = cacheaside.NewLoader(cache, "user", func(context.Context, int64) (int, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.version, nil
	}, &cacheaside.LoaderOptions{TTL: time.Hour})
	check(t, err)
	handle := func(table string) canal.Binding {
		return canal.Handle("history-"+table, "shop", table, func(_ context.Context, c event.Change) error {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.seen = append(x.seen, c.Table+c.After.Get("id").Text())
			if x.tell != nil {
				x.tell(x.seen[len(x.seen)-1])
			}
			return nil
		})
	}
	x.consumer, err = canal.NewConsumer(cache, s, nil,
		[]canal.Binding{canal.Bind(x.users, "shop", "users", canal.IntColumn[int64]("id")), handle("users"),
			handle("orders")}, &canal.Options{Parking: x})
	check(t, err)
	return x
}

func (s *side) Park(context.Context, parking.Parked) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parked++
	return nil
}

func (s *side) history() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// run runs the Consumer until the function that it returns is called, or the test ends.
func (s *side) run(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.consumer.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func source(t testing.TB, s message.Subscriber, topics ...string) canal.Source {
	t.Helper()
	made, err := watermillsource.New(s, envelope.Maxwell, topics...)
	check(t, err)
	return made
}

// A message is acknowledged when what it has changed is read by all, also one that cannot be read.
func TestChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
		t.Cleanup(func() { c.Close() })
		x := newSide(t, source(t, c, "users", "orders"))
		x.run(t)
		synctest.Wait()
		if v, err := x.users.Get(t.Context(), 7); v != 1 || err != nil {
			t.Fatal(v, err)
		}
		x.mu.Lock()
		x.version = 2
		x.mu.Unlock()
		check(t, c.Publish("users", updated("users", 7))) // returns when it is acknowledged
		if v, err := x.users.Get(t.Context(), 7); v != 2 || err != nil {
			t.Fatal(v, err)
		}
		check(t, c.Publish("orders", message.NewMessage("", []byte("?")), updated("orders", 8)))
		if got := x.history(); x.parked != 1 || !slices.Equal(got, []string{"users7", "orders8"}) {
			t.Errorf("%d parked, handled %q", x.parked, got)
		}
	})
}

// ordered is a broker that gives a topic's messages one at a time, each until it is acknowledged,
// as that of a partition of Kafka.
type ordered struct {
	mu      sync.Mutex
	left    map[string][]*message.Message
	arrived chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	cut     map[string]context.CancelFunc
}

func newOrdered(t testing.TB) *ordered {
	o := &ordered{left: map[string][]*message.Message{}, arrived: make(chan struct{}),
		cut: map[string]context.CancelFunc{}}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	t.Cleanup(func() { o.Close() })
	return o
}

func (o *ordered) publish(topic string, messages ...*message.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left[topic] = append(o.left[topic], messages...)
	close(o.arrived)
	o.arrived = make(chan struct{})
}

func (o *ordered) remain(topic string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.left[topic])
}

var errRefused = errors.New("refused")

func (o *ordered) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if o.ctx.Err() != nil {
		return nil, errRefused
	}
	out := make(chan *message.Message)
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(o.ctx, cancel)
	o.mu.Lock()
	o.cut[topic] = cancel
	o.mu.Unlock()
	o.work.Go(func() {
		defer cancel()
		defer close(out)
		for ctx.Err() == nil {
			o.mu.Lock()
			left, arrived := o.left[topic], o.arrived
			o.mu.Unlock()
			if len(left) == 0 {
				select {
				case <-arrived:
				case <-ctx.Done():
				}
				continue
			}
			m := left[0].Copy()
			m.SetContext(ctx)
			select {
			case out <- m:
			case <-ctx.Done():
				return
			}
			select {
			case <-m.Acked():
				o.mu.Lock()
				o.left[topic] = o.left[topic][1:]
				o.mu.Unlock()
			case <-m.Nacked():
			case <-ctx.Done():
			}
		}
	})
	return out, nil
}

func (o *ordered) Close() error {
	o.cancel()
	o.work.Wait()
	return nil
}

// What a Consumer had not done when it stopped is done by its next Run, in order, and by another
// process when the subscriber is closed.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrdered(t)
		s := source(t, o, "users")
		ctx, cancel := context.WithCancel(t.Context())
		batches, ended := make(chan event.Batch), make(chan error, 1)
		go func() { ended <- s.Run(ctx, event.Need{}, batches) }()
		<-batches
		for id := range 20 {
			o.publish("users", updated("users", id))
		}
		if got := <-batches; got.Changes[0].After.Get("id").Text() != "0" { // and is not acknowledged
			t.Fatal(got)
		}
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := o.remain("users"); n != 20 {
			t.Fatalf("%d are left", n)
		}
		x := newSide(t, s)
		stop := x.run(t)
		synctest.Wait()
		stop()
		var want []string
		for id := range 20 {
			want = append(want, fmt.Sprint("users", id))
		}
		if got := x.history(); !slices.Equal(got, want) || o.remain("users") != 0 {
			t.Errorf("%q, %d left", got, o.remain("users"))
		}
	})
}

// When a subscription ends by itself, Run says which, and the Consumer has the topic subscribed
// again.
func TestSubscriptionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrdered(t)
		x := newSide(t, source(t, o, "users", "orders"))
		x.run(t)
		o.publish("users", updated("users", 1))
		synctest.Wait()
		o.mu.Lock()
		o.cut["orders"]()
		o.mu.Unlock()
		synctest.Wait()
		if err := x.consumer.Stats().LastError; err == nil || !strings.Contains(err.Error(), `"orders"`) {
			t.Error(err)
		}
		o.publish("orders", updated("orders", 2))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := x.history(); !slices.Equal(got, []string{"users1", "orders2"}) ||
			o.remain("users")+o.remain("orders") != 0 {
			t.Errorf("%q", got)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	o := newOrdered(t)
	for name, f := range map[string]func() (canal.Source, error){
		"no subscriber": func() (canal.Source, error) { return watermillsource.New(nil, envelope.Canal, "a") },
		"no decoder":    func() (canal.Source, error) { return watermillsource.New(o, nil, "a") },
		"no topics":     func() (canal.Source, error) { return watermillsource.New(o, envelope.Canal) },
		"empty":         func() (canal.Source, error) { return watermillsource.New(o, envelope.Canal, "") },
		"twice":         func() (canal.Source, error) { return watermillsource.New(o, envelope.Canal, "a", "a") },
	} {
		if s, err := f(); s != nil || err == nil {
			t.Errorf("%s: nil", name)
		}
	}
	o.Close()
	if err := source(t, o, "a").Run(t.Context(), event.Need{}, make(chan event.Batch)); !errors.Is(err, errRefused) {
		t.Error(err)
	}
}
