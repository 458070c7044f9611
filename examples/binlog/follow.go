package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
)

// follower runs the Consumer and passes on the changes that its handler gets.
type follower struct {
	consumer *canal.Consumer
	fail     context.CancelCauseFunc // called if the Consumer stops with an error

	running sync.WaitGroup
	cancel  context.CancelFunc

	following atomic.Bool
	waiting   atomic.Int64 // changes that have arrived and were not shown
	changes   chan event.Change
}

func (f *follower) start(ctx context.Context) {
	ctx, f.cancel = context.WithCancel(ctx)
	f.running.Go(func() {
		if err := f.consumer.Run(ctx); err != nil { // most likely a server without the required settings
			f.fail(err)
		}
	})
}

// stop returns when the position has been saved.
func (f *follower) stop() {
	f.cancel()
	f.running.Wait()
}

// listening waits until the Consumer receives all changes and the whitelist has been built.
func (f *follower) listening(ctx context.Context) error {
	for f.consumer.Stats().Position == "" {
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// take is the handler.
func (f *follower) take(ctx context.Context, c event.Change) error {
	if !f.following.Load() {
		return nil
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	select {
	case f.changes <- c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow shows changes until Ctrl-C.
func (s *story) follow(ctx context.Context) error {
	for id := int64(1); id <= 20; id++ {
		if err := s.cache(func(p *process) error { _, err := p.product(ctx, id); return err }); err != nil {
			return err
		}
	}
	s.following.Store(true)
	s.say("8. Now change a row in another terminal. All caches have the products 1 to 20:\n     %s %s\"UPDATE "+
		"products SET price = 7.77 WHERE id = 7\"\n   (Ctrl-C ends the program)\n", strings.Join(s.operator.command(),
		" "), s.server.client.execute)
	for {
		select {
		case c := <-s.changes:
			if err := s.show(ctx, c); err != nil {
				return err
			}
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		}
	}
}

// arrived waits until a process serves the current row. If another change is waiting, it waits for
// at most a second, because that change can be of the same row.
func (s *story) arrived(ctx context.Context, p *process, id int64, row event.Row) error {
	for since := time.Now(); time.Since(since) < time.Second || s.waiting.Load() == 0 && time.Since(since) < patience; {
		got, err := p.product(ctx, id)
		if missing(err) && !row.Exists() || err == nil && row.Exists() && got.Price == row.Get("price").Text() {
			return nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// show prints a change and the values that the caches then serve.
func (s *story) show(ctx context.Context, c event.Change) error {
	row := c.After
	if !row.Exists() {
		row = c.Before
	}
	if !row.Exists() {
		s.say("   %v", c)
		return nil
	}
	var changed []string
	for _, name := range row.Columns().Names() {
		switch before, after := c.Before.Get(name), c.After.Get(name); {
		case !c.Before.Exists() || !c.After.Exists():
			changed = append(changed, name+" "+row.Get(name).Text())
		case !before.Equal(after):
			changed = append(changed, fmt.Sprintf("%s %s -> %s", name, before.Text(), after.Text()))
		}
	}
	id, err := row.Get("id").Int64()
	if err != nil {
		return err
	}
	for _, p := range s.fleet {
		if err := s.arrived(ctx, p, id, c.After); err != nil {
			return nil // Ctrl-C
		}
	}
	var prices []string
	for _, p := range append(s.fleet[:3:3], s.alone) {
		switch p, err := p.product(ctx, id); {
		case missing(err):
			prices = append(prices, "nothing")
		case err != nil:
			return err
		default:
			prices = append(prices, p.Price)
		}
	}
	s.say("   %s of product %d: %s. Prices served: %s; by the fourth process %s.", c.Kind, id,
		strings.Join(changed, ", "), strings.Join(prices[:3], ", "), prices[3])
	return nil
}
