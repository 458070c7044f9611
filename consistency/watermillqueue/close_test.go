package watermillqueue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/cacheaside/cacheaside/consistency/watermillqueue"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// before calls f before it closes a subscriber.
type before struct {
	*drained
	f func()
}

func (b before) Close() error {
	b.f()
	return b.drained.Close()
}

// A message that arrives while the subscriber is being closed is returned to the broker at once. A
// subscriber that waits for its messages would wait for it.
func TestCloseReturnsLateMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, returned := make(chan *message.Message), false
		q := open(t, newFake(t), &channel{late, sync.OnceFunc(func() {
			m := message.NewMessage("", []byte(`{"v":1,"id":"a","loader":"user","at":0,"created":0}`))
			late <- m
			select {
			case <-m.Nacked():
				returned = true
			case <-time.After(time.Minute):
			}
			close(late)
		})}, "due", 1)
		_, err := q.Claim(t.Context(), 1, time.Minute)
		check(t, err)
		synctest.Wait()
		check(t, q.Close())
		if !returned {
			t.Error("the message was not returned")
		}
	})
}

// channel is a subscriber whose first topic is a channel.
type channel struct {
	messages chan *message.Message
	close    func()
}

func (c *channel) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic != "due" {
		return nil, errRefused
	}
	return c.messages, nil
}

func (c *channel) Close() error {
	c.close()
	return nil
}

// A queue is closed while messages arrive: no message is sent on a closed channel, which the race
// detector would report, and another queue does what was not done.
func TestCloseWhileMessagesArrive(t *testing.T) {
	server := testenv.StartNATS(t)
	for i := range 4 {
		topic := fmt.Sprint("closing", i)
		var put atomic.Int64
		arrive := func() { // at least 20 messages
			from := put.Load()
			testenv.Eventually(t, "messages arrive", func() bool { return put.Load() > from+20 })
		}
		q := listening(t, open(t, natsPublisher(t, server.URL),
			before{push(t, server.URL, topic), sync.OnceFunc(arrive)}, topic, 1))
		writer := open(t, natsPublisher(t, server.URL), nil, topic, 0)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					if err := writer.Put(t.Context(), item(fmt.Sprint(put.Load()))); err != nil {
						t.Error(err)
						return
					}
					put.Add(1)
				}
			}
		}()
		arrive()
		_, err := q.Claim(t.Context(), 2, time.Minute) // by a Relay that ends before it has done them
		check(t, err)
		check(t, q.Close())
		close(stop)
		<-stopped
		finish(t, server.URL, topic, int(put.Load()))
	}
}

// finish does all items from 0 to n-1 in a queue of its own.
func finish(t *testing.T, url, topic string, n int) {
	t.Helper()
	q := open(t, natsPublisher(t, url), push(t, url, topic), topic, 1)
	done := map[string]bool{}
	testenv.Eventually(t, "another queue does all items", func() bool {
		work(t, q, done)
		return hasAll(done, n)
	})
}

// work does what can be claimed, and adds the texts of its keys to done.
func work(t *testing.T, q *watermillqueue.Queue, done map[string]bool) {
	t.Helper()
	items, err := q.Claim(t.Context(), 100, time.Minute)
	check(t, err)
	for _, i := range items {
		done[i.Key.Text] = true
	}
	check(t, q.Done(t.Context(), items...))
}

// hasAll reports whether done has all items from 0 to n-1.
func hasAll(done map[string]bool, n int) bool {
	for i := range n {
		if !done[fmt.Sprint(i)] {
			return false
		}
	}
	return true
}

// A queue receives messages after the queue that subscribed first was closed: also those that the
// first one held.
func TestGroupOutlivesItsFirst(t *testing.T) {
	server := testenv.StartNATS(t)
	first := listening(t, open(t, natsPublisher(t, server.URL), push(t, server.URL, topic), topic, 1))
	second := open(t, natsPublisher(t, server.URL), push(t, server.URL, topic), topic, 1)
	put, done := 0, map[string]bool{}
	putOne := func() {
		check(t, second.Put(t.Context(), item(fmt.Sprint(put))))
		put++
	}
	testenv.Eventually(t, "the second queue shares the messages", func() bool {
		putOne()
		work(t, second, done)
		return len(done) > 0
	})
	check(t, first.Close())
	putOne()
	testenv.Eventually(t, "the second queue does all items", func() bool {
		work(t, second, done)
		return hasAll(done, put)
	})
}

func init() { testenv.RegisterChild("panics", panics) }

// panics claims items, and dies as it would if its subscriber sent on a closed channel while the
// queue is closed.
func panics() {
	t := &fatal{}
	q, err := watermillqueue.New(natsPublisher(t, os.Getenv("NATS")), before{push(t, os.Getenv("NATS"), topic), func() {
		messages := make(chan int)
		close(messages)
		go func() { messages <- 1 }()
		select {}
	}}, topic, nil)
	check(t, err)
	for claimed := 0; claimed == 0; {
		q.Wait(context.Background())
		items, err := q.Claim(context.Background(), 5, time.Minute)
		check(t, err)
		claimed = len(items)
	}
	fmt.Println("claimed")
	q.Close()
}

// A process whose subscriber panics while it is closed has lost no item.
func TestSubscriberPanics(t *testing.T) {
	const items = 50
	server := testenv.StartNATS(t)
	child := testenv.SpawnChild(t, "panics", "NATS="+server.URL)
	p := open(t, natsPublisher(t, server.URL), push(t, server.URL, topic), topic, 0)
	for i := range items {
		check(t, p.Put(t.Context(), item(fmt.Sprint(i))))
	}
	line, err := child.ReadLine(testenv.Hang)
	check(t, err)
	if line != "claimed" && line != "claimed\n" {
		t.Fatalf("%q", line)
	}
	if _, err := child.ReadLine(testenv.Hang); !errors.Is(err, io.EOF) {
		t.Fatalf("the process lives: %v", err)
	}
	finish(t, server.URL, topic, items)
}
