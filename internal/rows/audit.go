package rows

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// A memoryCopy is a copy in the memory tier, with its key.
type memoryCopy struct {
	key   any
	text  string
	value audit.Copy
}

// AuditMemory is audit.Loader.AuditMemory. It changes nothing in memory. It loads and compares a
// row only if its copy is old enough.
func (c *Core) AuditMemory(stable uint64, written, age time.Duration) audit.Finding {
	if !c.HasMemory() || c.Bypassed() {
		return audit.Finding{Verdict: measure.None}
	}
	lookUp := func() (found memoryCopy, v measure.Verdict) {
		match := func(item *memory.Header) bool {
			key, _ := c.typed.Pair(item)
			text, err := c.typed.Text(key)
			return err == nil && c.names.Hash(text) == stable
		}
		item, f := c.memory.tier.Look(stable, &c.memory.generations, written, age, match)
		switch f {
		case memory.None:
			return found, measure.None
		case memory.Unknown:
			return found, measure.Unknown
		case memory.Young:
			return found, measure.Young
		}
		key, value := c.typed.Pair(item)
		text, _ := c.typed.Text(key)
		return memoryCopy{key, text, audit.Copy{Value: value, Null: item.Null, There: true}}, audit.Undecided
	}
	found, v := lookUp()
	if v != audit.Undecided {
		return audit.Finding{Verdict: v}
	}
	return audit.Finding{Verdict: audit.Undecided,
		Compare: func(ctx context.Context, mayLoad func() bool) measure.Verdict {
			again := func() audit.Copy {
				found, _ := lookUp()
				return found.value
			}
			return c.auditKey(found.key, found.text, again, mayLoad).Compare(ctx, found.value)
		}}
}

// AuditRedis compares the entry of a key with the database, because it is unknown when the entry
// was read. An entry with the stamp good was compared before, and is correct.
func (c *Core) AuditRedis(
	ctx context.Context, key any, good measure.Stamp, mayLoad func() bool,
) (measure.Verdict, measure.Stamp) {
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

// withLife returns ctx with a cancellation when the cache is closed.
func (c *Core) withLife(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(fault.Closed) })
	return ctx, func() { stop(); cancel(nil) }
}

// redisCopy returns the entry of a key in Redis. Its verdict is audit.Undecided if a read would
// be served that entry.
func (c *Core) redisCopy(
	ctx context.Context, key any, text string,
) (found audit.Copy, stamp measure.Stamp, v measure.Verdict) {
	row := &c.roundOf(key, text).Result
	if stamp, v = c.Fetch.Copy(ctx, row, audit.Undecided); v == audit.Undecided {
		found = copyOfRound(row)
	}
	return found, stamp, v
}

func copyOfRound(r *fetch.Round) audit.Copy {
	return audit.Copy{Value: r.Value, Null: r.Null, There: true}
}

// auditKey returns a key for a comparison of copies. mayLoad reports whether the comparison may
// load a row.
func (c *Core) auditKey(key any, text string, again func() audit.Copy, mayLoad func() bool) audit.Key {
	return audit.Key{
		Row:   func(ctx context.Context) (audit.Copy, bool) { return c.loadRow(ctx, key, text, mayLoad) },
		Again: again, Same: c.typed.same,
	}
}

// loadRow loads a single row within the limits of all loads, without a lease and without storing
// it.
func (c *Core) loadRow(ctx context.Context, key any, text string, mayLoad func() bool) (found audit.Copy, ok bool) {
	if !mayLoad() || ctx.Err() != nil {
		return found, false
	}
	c.Counters.CompareLoads.Add(1)
	row := c.LoadAlone(ctx, fetched([]*round{c.roundOf(key, text)}), source.Call{Background: true})[0]
	return audit.Copy{Value: row.Value, Null: row.Null, There: true}, row.Err == nil
}
