package main

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside"
)

// inconsistency changes a price after another process has read the old one and before it stores it.
func inconsistency(ctx context.Context, f *fleet, ids []int64) (failure, error) {
	const times = 100
	g := &gate{db: f.db}
	race := func(shops []catalog) (stale int64, err error) {
		reader, writer, other := shops[0], shops[1%len(shops)], shops[2%len(shops)]
		for _, id := range ids[:times] {
			old, err := f.db.product(ctx, id)
			if err != nil {
				return stale, err
			}
			g.arm()
			done := make(chan error, 1)
			go func() {
				_, err := reader.product(ctx, id) // may return the old price: it began before the change
				done <- err
			}()
			if err := g.wait(ctx, done); err != nil {
				return stale, err
			}
			err = writer.setPrice(ctx, id, old.Cents+100)
			g.open()
			if err := cmp.Or(err, <-done); err != nil {
				return stale, err
			}
			now, err := other.product(ctx, id)
			if err != nil {
				return stale, err
			}
			if now.Cents == old.Cents {
				stale++
			}
		}
		return stale, nil
	}

	out := failure{name: "inconsistency", counted: fmt.Sprintf("old prices shown after %d changes", times),
		words: "A reader loads the old price. A writer changes it and clears the cache. Then the reader stores " +
			"the old price, which the shop would show until the TTL."}
	// Without a memory tier Invalidate takes effect in all processes at once, not only in the
	// calling one.
	shops, err := f.cached("price", g.load, &cacheaside.LoaderOptions{MemoryTTL: -1, LoadTimeout: time.Minute})
	if err != nil {
		return out, err
	}
	if out.without, err = race(catalogs(f.naive("price", g.load, time.Hour))); err != nil {
		return out, err
	}
	out.with, err = race(catalogs(shops))
	return out, err
}

// gate stops one load after it has read its row.
type gate struct {
	db       *database
	armed    atomic.Bool
	read, on chan struct{}
}

func (g *gate) arm() {
	g.read, g.on = make(chan struct{}), make(chan struct{})
	g.armed.Store(true)
}

// load is the load function: the first load after arm waits for open.
func (g *gate) load(ctx context.Context, id int64) (product, error) {
	p, err := g.db.product(ctx, id)
	if g.armed.CompareAndSwap(true, false) {
		close(g.read)
		select {
		case <-g.on:
		case <-ctx.Done():
			return p, ctx.Err()
		}
	}
	return p, err
}

// wait returns when a load has read its row, or returns the reader's error if the reader ended
// first.
func (g *gate) wait(ctx context.Context, done <-chan error) error {
	select {
	case <-g.read:
		return nil
	case err := <-done:
		return cmp.Or(err, fmt.Errorf("the reader found a price where none was stored"))
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) open() { close(g.on) }
