package main

import (
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// sellFunc sells one item to a buyer under a lock. After errSoldOut and errors of ctx the buyer
// stops; after all other errors the buyer tries again.
type sellFunc func(ctx context.Context, buyer int) error

var errSoldOut = errors.New("sold out")

// withArticle sells under a lock from an article.
func withArticle(article func(*process) lockFunc) func(*process) (sellFunc, error) {
	return func(p *process) (sellFunc, error) {
		acquire := article(p)
		return func(ctx context.Context, buyer int) error {
			release, err := acquire(ctx)
			if err != nil {
				return err
			}
			defer release()
			return soldOut(p.shop.buy(ctx, buyer, 0, 0))
		}, nil
	}
}

func soldOut(err error) error {
	if errors.Is(err, errEmpty) {
		return errSoldOut
	}
	return err
}

// withLibrary sells under a lock of this library, in one Redis or in a majority of five. The only
// difference from an article's lock is that the purchase uses the lease's token and context.
func withLibrary(p *process) (sellFunc, error) {
	return withLocker(p, func(o *lock.Options) (*lock.Locker, error) { return lock.NewRedis(p.rdb, o) })
}

func withRedlock(p *process) (sellFunc, error) {
	return withLocker(p, func(o *lock.Options) (*lock.Locker, error) { return redlock.New(p.masters, o) })
}

func withLocker(p *process, open func(*lock.Options) (*lock.Locker, error)) (sellFunc, error) {
	locker, err := open(&lock.Options{TTL: ttl, Timeout: ttl / 5})
	if err != nil {
		return nil, err
	}
	p.close = append(p.close, locker.Close)
	return func(ctx context.Context, buyer int) error {
		lease, err := locker.Acquire(ctx, key, nil)
		if err != nil {
			return err
		}
		defer func() { _ = lease.Release() }() // if the lock was lost, the token check has reported it
		return soldOut(p.shop.buy(p.work(lease), buyer, 0, lease.Token()))
	}, nil
}

// withSegments divides the stock into segments. A buyer who finds an empty segment tries the next
// one.
func withSegments(p *process) (sellFunc, error) {
	locker, err := lock.NewRedis(p.rdb, &lock.Options{TTL: ttl, Timeout: ttl / 5})
	if err != nil {
		return nil, err
	}
	p.close = append(p.close, locker.Close)
	segments, err := lock.NewSegmented(locker, manySegments)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, buyer int) error {
		segment, err := segments.Acquire(ctx, key, buyer, nil)
		for err == nil {
			err = p.shop.buy(p.work(segment.Lease), buyer, segment.Index, segment.Token())
			if !errors.Is(err, errEmpty) {
				return errors.Join(err, ignoreLost(segment.Release()))
			}
			segment, err = segment.Next(ctx)
		}
		if errors.Is(err, lock.ErrAllSeen) {
			return errSoldOut
		}
		return err
	}, nil
}

// ignoreLost returns nil if err reports the loss of the lock, and err otherwise. A purchase
// counts if its token was accepted.
func ignoreLost(err error) error {
	if errors.Is(err, lock.ErrLost) {
		return nil
	}
	return err
}

// work returns the context of a purchase. The victim of a fault ignores the end of the lease,
// because it is suspended or has sent its write before.
func (p *process) work(lease *lock.Lease) context.Context {
	if p.faults.victim {
		return context.WithoutCancel(lease.Context())
	}
	return lease.Context()
}
