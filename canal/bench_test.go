package canal

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// BenchmarkConsumer measures the cost of a change when there is a backlog: with a key of its own,
// and with one of a thousand.
func BenchmarkConsumer(b *testing.B) {
	for name, distinct := range map[string]int64{"distinct keys": 1 << 40, "a thousand keys": 1000} {
		b.Run(name, func(b *testing.B) {
			rdb := testenv.SharedRedis(b).Client(b)
			c, err := cacheaside.New(rdb, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			l, err := cacheaside.NewLoader(c, "bench",
				func(context.Context, int64) (string, error) { return "", nil }, nil)
			if err != nil {
				b.Fatal(err)
			}
			source := &backlog{changes: int64(b.N), distinct: distinct, done: make(chan struct{})}
			consumer, err := NewConsumer(c, source, &inMemory{at: "0"},
				[]Binding{Bind(l, "shop", "users", IntColumn[int64]("id"))}, nil)
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error)
			b.ReportAllocs()
			b.ResetTimer()
			go func() { ended <- consumer.Run(ctx) }()
			<-source.done
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
			stop()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// backlog is a Source with a fixed number of changes in store.
type backlog struct {
	changes, distinct int64
	done              chan struct{}
}

func (s *backlog) Run(ctx context.Context, _ event.Need, deliver chan<- event.Batch) error {
	send := func(b event.Batch) {
		select {
		case deliver <- b:
		case <-ctx.Done():
		}
	}
	for n := int64(0); n < s.changes; {
		batch := make([]event.Change, 0, 500)
		for ; n < s.changes && len(batch) < cap(batch); n++ {
			id := n % s.distinct
			batch = append(batch, update(row(id, "a@b"), row(id, "a@b")))
		}
		send(event.Batch{Changes: batch, Position: event.Position(fmt.Sprint(n)), Time: time.Now()})
	}
	send(event.Batch{Ack: func() { close(s.done) }})
	<-ctx.Done()
	return ctx.Err()
}
