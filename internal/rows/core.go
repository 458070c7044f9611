package rows

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/limit"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// Shared is what the loaders of a cache share.
type Shared struct {
	*fetch.Shared
	Memory   *memory.Tier // nil: there is none
	Limit    *limit.Limit
	MaxLoads int // of all loaders at once; 0 or less: any number
	MaxQueue int
	Inform   func(what, loader string)
	Panicked func(error) (value any, ok bool) // whether an error is of Shared.Caught, and of which panic
}

// CoreOptions are the options of a loader that do not depend on its types.
type CoreOptions struct {
	Fetch   fetch.Options // as far as cacheaside.LoaderOptions has its fields, and Name; Core sets the others
	Version string        // LoaderOptions.Version
	Batch   bool          // the load function is for many keys

	BatchSize, MaxLoads int
	BreakAt             float64
	BreakFor            time.Duration
	NotFound            func(error) bool
	Shadow              float64
	Filter              Filter // nil: none
}

// Filter is cacheaside.Filter, as far as loaders need it.
type Filter interface {
	fetch.Filter
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)
}

// typed is the part of a Reader that knows the types of the loader. A key is a *K, a value a *V.
type typed interface {
	fetch.Items
	fetch.Codec
	query(rounds []*fetch.Round) source.Query
	hash(key any, text string) uint64
	parse(text string) (key any, ok bool)     // the own key of a text, if it can be had
	keyOfText(text string) (key any, ok bool) // the same, also of a text that may itself be a key
	tierCopy(key any, reasons uint32) (audit.Copy, bool)
	same(a, b audit.Copy) bool
}

// round is one round of one key, which package flight knows by its text.
type round = flight.Round[string, fetch.Round]

// Group is rounds that are read in one way.
type Group = flight.Group[string, fetch.Round]

// Groups are the groups of a loader.
type Groups struct {
	Plain     *Group
	Fresh     *Group // memory may not answer; Plain, where it makes no difference
	Warming   *Group
	Refreshes *Group
	Direct    *Group // of the database, for a shadow; else nil
	Separate  *Group // of the database, one key a call, for the loads of batches; nil for a loader of single rows
}

func (g *Groups) of(how fetch.How) *Group {
	if how == fetch.Fresh {
		return g.Fresh
	}
	return g.Plain
}

func (g *Groups) all() []*Group {
	all := []*Group{g.Plain, g.Fresh, g.Warming, g.Refreshes, g.Direct, g.Separate}
	return slices.DeleteFunc(all, func(g *Group) bool { return g == nil })
}

// Core is the part of a Reader that does not depend on the types of the loader.
type Core struct {
	Counters fetch.Counters
	Source   *source.Source // calls the load function
	Shadow   *audit.Shadow  // nil: callers are answered by the caches
	Fetch    *fetch.Fetcher // reads the keys that memory does not answer
	Groups   Groups

	cache       *Shared
	options     CoreOptions
	names       keys.Namespace
	typed       typed
	memory      processMemory
	spellings   bool        // keys contain text
	filterCheck filterCheck // rows that a filter is asked for once it was rebuilt
	life        context.Context
	stop        context.CancelCauseFunc
}

// processMemory is the memory tier of a loader.
type processMemory struct {
	tier        *memory.Tier       // nil: not used by this loader
	generations memory.Generations // the loader's generations
	bypass      atomic.Uint32      // why reads bypass the memory tier: bypassing, shadowing, forgetful
}

// The bits of memory.bypass.
const (
	bypassing = 1 << iota // all
	shadowing             // callers: see LoaderOptions.Shadow
	noTier                // there is no memory tier
)

func (p *processMemory) setup(cache *Shared, o *fetch.Options) {
	if o.MemoryTTL > 0 {
		p.tier = cache.Memory
	}
	if p.tier == nil {
		p.bypass.Or(noTier)
	}
	if cache.Bus == nil {
		p.generations[0].Store(&memory.Generation{})
	}
}

// chunk is how many keys a call of the load function may have.
func (c *Core) chunk() int {
	if c.options.Batch {
		return c.options.BatchSize
	}
	return 1
}

// calls is how many calls of the load function one flight may make at once. More than MaxLoads
// would stand in each other's way.
func (c *Core) calls() int {
	calls := fetch.MaxCalls
	for _, most := range []int{c.cache.MaxLoads, c.options.MaxLoads} {
		if most > 0 {
			calls = min(calls, most)
		}
	}
	return calls
}

// Counts are what a Reader counts.
type Counts struct {
	Fetch  *fetch.Counters
	Source *source.Counters
	Shadow *audit.Shadow // nil: there is none
	Broken bool          // the circuit breaker is open
}

// Counts returns the counters.
func (c *Core) Counts() Counts {
	return Counts{&c.Counters, &c.Source.Counters, c.Shadow, c.Source.Broken()}
}

// Closed reports whether the cache was closed.
func (c *Core) Closed() bool { return c.Groups.Plain.Closed() }

// Close ends all reads with fault.Closed, and waits for their end.
func (c *Core) Close() {
	c.filterCheck.stop()
	c.Fetch.Stop()
	c.Shadow.Close()
	c.stop(fault.Closed)
	var wg sync.WaitGroup
	for _, g := range c.Groups.all() {
		wg.Go(func() { g.Close(fault.Closed) })
	}
	wg.Wait()
	c.Shadow.Wait()
	c.Fetch.Wait()
}

// Bypass switches the caches off, or on again.
func (c *Core) Bypass(on bool) {
	if on {
		c.memory.bypass.Or(bypassing)
	} else {
		c.memory.bypass.And(^uint32(bypassing))
	}
}

// Bypassed reports whether the caches are off.
func (c *Core) Bypassed() bool { return c.memory.bypass.Load()&bypassing != 0 }

// HasMemory reports whether the loader uses the memory tier.
func (c *Core) HasMemory() bool { return c.memory.tier != nil }

// ForgetFailure ends the memory of a failed load of a key, also of one that is under way.
func (c *Core) ForgetFailure(text string) { c.Source.Failures.End(text) }

// Raise begins another generation of the loader, in a range of slots.
func (c *Core) Raise(slots int, generation uint64) {
	c.memory.generations[slots].Store(&memory.Generation{Number: generation, Since: time.Now()})
}

// Generation is the loader's generation where the key of this name is; nil: it is not known yet.
func (c *Core) Generation(name string) *memory.Generation {
	return c.memory.generations.Of(uint8(c.cache.Conn.Range(name)))
}

// ForgetAll ends all that memory has of the loader, where an InvalidateAll has not reached Redis.
func (c *Core) ForgetAll() {
	m := &c.memory
	if m.tier == nil {
		return
	}
	for slots := range m.generations {
		if generation := m.generations[slots].Load(); generation == nil { // values may be there since the start, and no generation is known
			m.tier.Clear(slots)
		} else {
			again := *generation
			m.generations[slots].CompareAndSwap(generation, &again) // else another has come
		}
	}
}

// LoadAlone loads the rows of rounds within what all loads may ask of the database, but without
// leases, and stores nothing.
func (c *Core) LoadAlone(ctx context.Context, rounds []*fetch.Round, how source.Call) []source.Row {
	ctx = fetch.WithPrimary(ctx, c.cache.MayHold) // Redis was not asked: see PreferPrimary
	rows := c.Source.Load(ctx, fetch.Texts(rounds), c.typed.query(rounds), how)
	c.noteReturned(rounds, rows)
	return rows
}

// ErrNotStored is the error of a value that was loaded and could not be stored.
var ErrNotStored = errors.New("loaded, but not stored")

// KeyOf returns what RefreshKeys and AuditRedis take for the key of a text, if this loader reads
// keys of that version, and texts of its keys can be read.
func (c *Core) KeyOf(version, text string) (key any, ok bool) {
	if version != c.options.Version {
		return nil, false
	}
	return c.typed.parse(text)
}

// rebuilt is how a loader takes part in the check of its filter.
type filterCheck struct {
	recent *recentKeys // nil: the filter does not ask
	stop   func()      // ends that
}

// returned is some of the keys whose rows loads have returned, by their texts.
type recentKeys struct {
	mu     sync.Mutex
	byText map[string]recentKey
}

// loaded is a key, and when its row was read.
type recentKey struct {
	key    any
	text   string
	readAt time.Time
}

// note remembers rounds whose rows a load has returned, if the filter asks for them.
func (c *Core) noteReturned(rounds []*fetch.Round, rows []source.Row) {
	if c.filterCheck.recent == nil {
		return
	}
	for i, r := range rounds {
		if rows[i].Err == nil && r.Text() != "" {
			c.filterCheck.recent.note(r.Text(), copyOfKey(r.Key), rows[i])
		}
	}
}

// copied returns a copy of a key, which does not keep its round alive.
func copyOfKey(key any) any {
	own := reflect.New(reflect.TypeOf(key).Elem())
	own.Elem().Set(reflect.ValueOf(key).Elem())
	return own.Interface()
}

// note remembers a key whose row a load has returned, in the place of any other where there are too
// many. It forgets a key that has turned out to have no row.
func (r *recentKeys) note(text string, key any, row source.Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if row.Null {
		delete(r.byText, text)
		return
	}
	r.byText[text] = recentKey{key, text, row.Began}
	for other := range r.byText {
		if len(r.byText) <= maxReturned {
			break
		}
		if other != text {
			delete(r.byText, other)
		}
	}
}

// between returns the keys whose rows were read after then and, unless before is zero,
// before that. It forgets those that were read earlier.
func (r *recentKeys) between(then, before time.Time) (rows []recentKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for text, of := range r.byText {
		switch {
		case of.readAt.Before(then):
			delete(r.byText, text)
		case before.IsZero() || of.readAt.Before(before):
			rows = append(rows, of)
		}
	}
	return rows
}
