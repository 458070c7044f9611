package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// Leases are leases of several locks that were acquired together. They are safe for concurrent use.
type Leases struct {
	names  []string // sorted
	leases []*Lease // by name; the context of each is derived from that of the one before
}

const maxNames = 100

// AcquireAll acquires the locks with all these names, or none of them. Duplicates count once. The
// options apply to each lock, and Wait limits the whole waiting. The errors are those of Acquire.
//
// Callers that want some of the same locks do not wait for each other forever: on a single Redis,
// or one with sentinels, AcquireAll acquires all locks by one request and holds none while it
// waits. Elsewhere, also in a Redis Cluster, it acquires them one after the other in the order of
// their names, and releases them if it does not get all. There, and for an owner (WithOwner), a
// caller that acquires locks in another order by Acquire may wait for one that waits for it.
//
// Each lock is extended by itself. There are from 1 to 100 names.
func (l *Locker) AcquireAll(ctx context.Context, names []string, options *AcquireOptions) (*Leases, error) {
	s := &Leases{names: slices.Compact(slices.Sorted(slices.Values(names)))}
	if len(s.names) < 1 || len(s.names) > maxNames {
		return nil, fmt.Errorf("lock: AcquireAll of %d names: must be from 1 to %d", len(s.names), maxNames)
	}
	d, ok := l.driver.(driver.Together)
	if ok && ownerOf(ctx) == nil && len(s.names) > 1 {
		if err := l.acquireTogether(ctx, d, s, options); err != nil {
			return nil, err
		}
		return s, nil
	}
	var o AcquireOptions
	if options != nil {
		o = *options
	}
	end := time.Now().Add(o.Wait)
	for _, name := range s.names {
		if left := time.Until(end); o.Wait > 0 {
			o.Wait, o.Try = max(left, 1), o.Try || left <= 0
		}
		lease, err := l.Acquire(ctx, name, &o)
		if err != nil {
			s.Release() //nolint:errcheck // the caller has done nothing under these locks
			return nil, err
		}
		s.leases, ctx = append(s.leases, lease), lease.Context()
	}
	return s, nil
}

// acquireTogether acquires the locks by one request.
func (l *Locker) acquireTogether(ctx context.Context, d driver.Together, s *Leases, options *AcquireOptions) error {
	o := options.withDefaults(&l.options)
	requests := make([]request, len(s.names))
	err := o.check()
	for i, name := range s.names {
		requests[i] = request{key: l.options.Prefix + name, options: o, wait: !o.Try}
		err = errors.Join(err, checkName(name))
	}
	if err != nil {
		return failed(OpAcquire, requests[0].key, err)
	}
	end := l.observe(ctx, OpWait)
	err = l.bounded(ctx, o.Wait, func(limited context.Context) error {
		return l.acquireAllInTurn(limited, ctx, d, requests, s)
	})
	end(err)
	return failed(OpAcquire, requests[0].key, err)
}

// acquireAllInTurn waits in the queues of all locks, in the order of their names, and acquires
// them.
func (l *Locker) acquireAllInTurn(
	ctx, caller context.Context, d driver.Together, requests []request, s *Leases,
) error {
	all := make([]driver.Request, len(requests))
	holds := make([]*hold, len(requests))
	for i, r := range requests {
		w, _, err := l.awaitTurn(ctx, caller, r)
		if err != nil {
			return err
		}
		defer l.dequeue(r.queue(), w)
		holds[i] = newHold(l, r, caller)
		defer holds[i].ctx.End()
		all[i] = l.driverRequest(r, holds[i].timeout, holds[i].lose)
	}
	grants, err := d.AcquireTogether(ctx, all)
	if err != nil {
		return err
	}
	var errs []error
	for i, h := range holds {
		lease, err := l.begin(h, grants[i], caller)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.leases, caller = append(s.leases, lease), lease.Context()
	}
	if len(errs) > 0 {
		s.Release() //nolint:errcheck // the caller has done nothing under these locks
	}
	return errors.Join(errs...)
}

// Context returns the context for the work under the locks. It ends with the cause ErrLost when any
// of them is lost, before another holder can get that one. See Lease.Context.
func (s *Leases) Context() context.Context { return s.leases[len(s.leases)-1].ctx }

// Token returns the fencing token of the lock with this name, or 0 if it is not one of these. See
// Lease.Token.
func (s *Leases) Token(name string) int64 {
	i, ok := slices.BinarySearch(s.names, name)
	if !ok {
		return 0
	}
	return s.leases[i].Token()
}

// Release releases all locks, like Lease.Release, and returns the joined errors.
func (s *Leases) Release() error {
	var errs []error
	for _, lease := range slices.Backward(s.leases) {
		errs = append(errs, lease.Release())
	}
	return errors.Join(errs...)
}
