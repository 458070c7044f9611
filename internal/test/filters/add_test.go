package filters_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// sent counts what is sent for calls whose context is counted.
type sent struct{ trips, commands atomic.Int64 }

type counted struct{}

func (s *sent) count(ctx context.Context, commands int) {
	if ctx.Value(counted{}) != nil {
		s.trips.Add(1)
		s.commands.Add(int64(commands))
	}
}

func (s *sent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.count(ctx, 1)
		return next(ctx, cmd)
	}
}

func (s *sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.count(ctx, len(cmds))
		return next(ctx, cmds)
	}
}

// adder is a filter for 1 %, and the client of its server that it has, which keeps deadlines: with
// another each trip is handed over to a goroutine of its own.
func adder(t testing.TB) (*bloom.Redis, *redis.Client) {
	o := testenv.SharedRedis(t).Options()
	o.ContextTimeoutEnabled = true
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	f := newFilter(t, rdb, "adds", 1_000_000)
	_, err := f.Rebuild(t.Context(), bloom.Keys(keysOf("user:", 1000)...), atOnce)
	must(t, err)
	return f, rdb
}

// TestAddIsOneTrip: one script adds a key and announces it.
func TestAddIsOneTrip(t *testing.T) {
	f, rdb := adder(t)
	must(t, f.Add(t.Context(), "first")) // the server has the script now
	calls := &sent{}
	o := *rdb.Options()
	own := redis.NewClient(&o)
	t.Cleanup(func() { own.Close() })
	own.AddHook(calls)
	g := newFilter(t, own, "adds", 1_000_000)
	must(t, g.Add(t.Context(), "second")) // it knows the descriptor now
	ctx := context.WithValue(t.Context(), counted{}, true)
	for i := range 200 {
		must(t, g.Add(ctx, strconv.Itoa(i)))
	}
	if trips, commands := calls.trips.Load(), calls.commands.Load(); trips != 200 || commands != 200 {
		t.Errorf("200 Adds are %d trips of %d commands", trips, commands)
	}
	if n := hidden(t, f, []string{"first", "second", "0", "199"}); n > 0 {
		t.Errorf("%d are hidden", n)
	}
}

// TestAddSpeed measures an Add and, for comparison, the setting of its seven bits alone by a plain
// client.
func TestAddSpeed(t *testing.T) {
	f, rdb := adder(t)
	rounds, n := 3, 200
	if testenv.Accepting {
		rounds, n = 16, 2000
	}
	var add, bits []time.Duration
	for round := range rounds {
		began := time.Now()
		for i := range n {
			must(t, f.Add(t.Context(), "key:"+strconv.Itoa(round*n+i)))
		}
		add = append(add, time.Since(began)/time.Duration(n))
		began = time.Now()
		for i := range n {
			pipe := rdb.Pipeline()
			for j := range 7 {
				pipe.SetBit(t.Context(), "bits", int64((round*n+i)*7919+j*104729)%(1<<18), 1)
			}
			_, err := pipe.Exec(t.Context())
			must(t, err)
		}
		bits = append(bits, time.Since(began)/time.Duration(n))
	}
	slices.Sort(add)
	slices.Sort(bits)
	a, b := add[len(add)/2], bits[len(bits)/2]
	t.Logf("an Add takes %v, seven SETBITs in a pipeline %v: %.2f times; at best %v and %v: %.2f times",
		a, b, float64(a)/float64(b), add[0], bits[0], float64(add[0])/float64(bits[0]))
	if testenv.Accepting && a > 2*b {
		t.Errorf("an Add takes %v, seven SETBITs in a pipeline %v", a, b)
	}
}
