package rows

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/source"
)

// looked is a copy in the memory tier.
type memoryCopy struct {
	key   any
	text  string
	value audit.Copy
}

// AuditMemory is audit.Loader.AuditMemory. It only looks: a row is loaded if the copy is older, and
// is compared.
func (c *Core) AuditMemory(stable uint64, written, age time.Duration) audit.Finding {
	if !c.HasMemory() || c.Bypassed() {
		return audit.Finding{Verdict: measure.None}
	}
	lookUp := func() (of memoryCopy, v measure.Verdict) {
		item, read, none := c.memory.tier.Look(stable, &c.memory.generations, c.options.Fetch.MemoryTTL, age)
		switch {
		case item == nil && none:
			return of, measure.None
		case item == nil:
			return of, measure.Unknown
		case read > written:
			return of, measure.Young
		}
		key, value := c.typed.Pair(item)
		text, _ := c.typed.Text(key)
		if c.names.Hash(text) != stable { // another key of that hash in this process
			return of, measure.Unknown
		}
		return memoryCopy{key, text, audit.Copy{Value: value, Null: item.Null, There: true}}, audit.Undecided
	}
	of, v := lookUp()
	if v != audit.Undecided {
		return audit.Finding{Verdict: v}
	}
	return audit.Finding{Verdict: audit.Undecided, Compare: func(ctx context.Context, mayLoad func() bool) measure.Verdict {
		again := func() audit.Copy {
			of, _ := lookUp()
			return of.value
		}
		return c.auditKey(of.key, of.text, again, mayLoad).Compare(ctx, of.value)
	}}
}

// AuditRedis compares the entry of a key with the database, for nobody knows when it was read. The
// entry with the stamp good is known to be right.
func (c *Core) AuditRedis(ctx context.Context, key any, good measure.Stamp, mayLoad func() bool) (measure.Verdict, measure.Stamp) {
	text, err := c.typed.Text(key)
	if err != nil {
		return measure.Unknown, measure.Stamp{}
	}
	ctx, stop := c.withLife(ctx)
	defer stop()
	first, stamp, v := c.redisCopy(ctx, key, text)
	switch {
	case v != audit.Undecided:
		return v, stamp
	case good != measure.Stamp{} && stamp == good:
		return measure.Same, stamp
	}
	again := func() (found audit.Copy) {
		found, stamp, _ = c.redisCopy(ctx, key, text)
		return found
	}
	return c.auditKey(key, text, again, mayLoad).Compare(ctx, first), stamp
}

// alive is ctx, which also ends with the cache.
func (c *Core) withLife(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(fault.Closed) })
	return ctx, func() { stop(); cancel(nil) }
}

// entryOf is the entry of a key in Redis, if it would be served; then its verdict is Undecided.
func (c *Core) redisCopy(ctx context.Context, key any, text string) (found audit.Copy, stamp measure.Stamp, v measure.Verdict) {
	of := &c.roundOf(key, text).Result
	if stamp, v = c.Fetch.Copy(ctx, of, audit.Undecided); v == audit.Undecided {
		found = copyOfRound(of)
	}
	return found, stamp, v
}

func copyOfRound(r *fetch.Round) audit.Copy {
	return audit.Copy{Value: r.Value, Null: r.Null, There: true}
}

// audited is a key whose copies are compared, where mayLoad allows it.
func (c *Core) auditKey(key any, text string, again func() audit.Copy, mayLoad func() bool) audit.Key {
	return audit.Key{
		Row:   func(ctx context.Context) (audit.Copy, bool) { return c.loadRow(ctx, key, text, mayLoad) },
		Again: again, Same: c.typed.same,
	}
}

// row loads a row by itself: within the limits of all loads, but without a lease, and nothing is
// stored.
func (c *Core) loadRow(ctx context.Context, key any, text string, mayLoad func() bool) (found audit.Copy, ok bool) {
	if !mayLoad() || ctx.Err() != nil {
		return found, false
	}
	c.Counters.CompareLoads.Add(1)
	row := c.LoadAlone(ctx, fetched([]*round{c.roundOf(key, text)}), source.Call{Background: true})[0]
	return audit.Copy{Value: row.Value, Null: row.Null, There: true}, row.Err == nil
}
