package bloom

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/bloom/internal/sqltable"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// Two applications on one Redis may use filters of the same name, by mistake. Each would refuse the
// rows of the other. So a generation records whose it is: the Options.Prefix of the Cache whose
// loaders use the filter, and the table that it was read from. A filter that knows another owner or
// table for itself does not use the generation, and does not replace it.

// ErrForeign means that the filter of this name belongs to another application: it was built for
// loaders of a Cache with another Options.Prefix, or from another table. All lookups return
// "maybe", with this error, and Rebuild and Maintain do not replace it. Give one of the filters
// another Options.Prefix or another name. If the other application no longer exists, delete the key
// prefix::bloom:{name} in Redis.
var ErrForeign = errors.New("bloom: the filter of this name belongs to another application")

// identity holds the properties of a filter that distinguish its application from others.
type identity struct {
	owner  atomic.Pointer[string] // Options.Prefix of the Cache of its loaders; nil: it has none
	table  atomic.Pointer[string] // what its source reads; nil: not known
	built  atomic.Pointer[string] // ID of the last generation that this process has built
	warned atomic.Pointer[string] // ID of the last foreign generation that was logged

	replaced atomic.Bool // a Rebuild with AllowForeign is in progress, under the filter's lock
}

// text returns the value of p, or "" if it is nil.
func text(p *atomic.Pointer[string]) string {
	if s := p.Load(); s != nil {
		return *s
	}
	return ""
}

// SetOwner records that loaders of a Cache with this Options.Prefix use the filter. NewLoader calls
// it. It does no I/O. A second call with another prefix is an error, because loaders of two Caches
// have different rows.
func (r *Redis) SetOwner(prefix string) error {
	if !r.identity.owner.CompareAndSwap(nil, &prefix) {
		if before := text(&r.identity.owner); before != prefix {
			return fmt.Errorf("the filter %s is used by a loader of another Cache, whose Options.Prefix is %q and "+
				"not %q: make a filter for each", r.name, before, prefix)
		}
		return nil
	}
	r.recheckReplica()
	return nil
}

// SetOwner is SetOwner of the Redis filter.
func (r *Replica) SetOwner(prefix string) error { return r.Redis.SetOwner(prefix) }

// setTable records the table that the source of this process reads.
func (r *Redis) setTable(table string) {
	if text(&r.identity.table) != table {
		r.identity.table.Store(&table)
		r.recheckReplica()
	}
}

// foreign returns why a generation must not be used or replaced, or nil.
func (r *Redis) foreign(g *generation) error {
	owner, table := text(&r.identity.owner), text(&r.identity.table)
	var other, mine string
	switch {
	case owner != "" && g.Owner != "" && g.Owner != owner:
		other, mine = "a Cache with Options.Prefix "+g.Owner, owner
	case table != "" && g.Table != "" && g.Table != table:
		other, mine = "the table "+g.Table, table
	default:
		return nil
	}
	return fmt.Errorf("%w: %s::bloom:{%s} was built for %s, not %s; set bloom.Options.Prefix, or another name",
		ErrForeign, r.options.Prefix, r.name, other, mine)
}

// replaceable returns an error if the active generation belongs to another application, unless the
// current Rebuild may replace it.
func (r *Redis) replaceable(d *descriptor) error {
	if d.Active == nil || r.identity.replaced.Load() {
		return nil
	}
	return r.foreign(d.Active)
}

// unowned reports whether a generation may belong to another application, because it does not
// record its owner and the filter does not have the prefix of its Cache. Earlier versions did not
// record the owner. A rebuild decides.
func (r *Redis) unowned(g *generation) bool {
	owner := text(&r.identity.owner)
	return g.Owner == "" && owner != "" && owner != r.options.Prefix && text(&r.identity.built) != g.ID
}

// unusable returns an error if the filter must not refuse keys by this generation.
func (r *Redis) unusable(g *generation) error {
	err := r.foreign(g)
	if err != nil {
		if warned := r.identity.warned.Swap(&g.ID); warned == nil || *warned != g.ID {
			r.warn(err.Error())
		}
		return err
	}
	if r.unowned(g) {
		return errUnowned
	}
	return nil
}

var errUnowned = errors.New(
	"an earlier version has built the filter, without recording for which Cache: it returns \"maybe\" until it is " +
		"rebuilt")

// own records the owner and the table in a generation that this process has built.
func (r *Redis) own(g, before *generation) {
	g.Owner, g.Table = text(&r.identity.owner), text(&r.identity.table)
	if before != nil && g.Owner == "" { // a program without loaders, such as the tool
		g.Owner = before.Owner
	}
	r.identity.built.Store(&g.ID)
}

// identified returns a context in which a Source of Table reports its table to the filter. The
// source fails if the active generation is of another one.
func (r *Redis) identified(ctx context.Context) context.Context {
	return sqltable.WithReport(ctx, func(ctx context.Context, table string) error {
		r.setTable(table)
		d, err := r.fetchDescriptor(ctx, r.longTimeout())
		if err != nil {
			return err
		}
		return r.replaceable(&d.descriptor)
	})
}

// identify asks the source for its table, if that is not known and the active generation has one.
// Without it, Maintain would not notice a filter of another application before a rebuild is due.
func (r *Redis) identify(ctx context.Context, source Source) (err error) {
	if text(&r.identity.table) != "" {
		return nil
	}
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	switch {
	case errors.Is(err, conn.ErrClosed):
		return errClosed
	case err != nil || d.Active == nil || d.Active.Table == "":
		return r.wrapError(err)
	}
	defer func() {
		if p := recover(); p != nil {
			err = limitedlog.Panicked("the source", p)
		}
	}()
	for _, err := range source(r.identified(ctx), "") {
		return err
	}
	return nil
}
