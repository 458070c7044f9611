package rows

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/limit"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// Shared has the parts of a cache that all its loaders share.
type Shared struct {
	*fetch.Shared
	Memory   *memory.Tier // nil if there is none
	Limit    *limit.Limit
	MaxLoads int // maximum number of concurrent loads of all loaders; 0 or less: unlimited
	MaxQueue int
	Inform   func(message, loader string)
	Panicked func(error) (value any, ok bool) // reports whether an error is from Shared.Caught, and with which value
}

// CoreOptions are the options of a loader that do not depend on its types.
type CoreOptions struct {
	Fetch   fetch.Options // Name and the fields of cacheaside.LoaderOptions; Core sets the others
	Version string        // LoaderOptions.Version
	Batch   bool          // the load function accepts many keys

	BatchSize, MaxLoads int
	BreakAt             float64
	BreakFor            time.Duration
	NotFound, BadKey    func(error) bool
	Shadow              float64
	Filter              Filter // nil if there is none

	// returns the loader's spelling of the name of a group; nil: any name is one
	GroupName func(name string) (string, error)
}

// Filter is the part of cacheaside.Filter that loaders need.
type Filter interface {
	fetch.Filter
	Inserting(ctx context.Context, keys []string) (committed func(context.Context) error, err error)
}

// typed is the part of a Reader that knows the types of the loader. A key is a *K, a value a *V.
type typed interface {
	fetch.Items
	fetch.Codec
	query(rounds []*fetch.Round) source.Query
	hash(key any, text string) uint64
	parse(text string) (key any, ok bool) // the canonical key of a text, if the text can be parsed
	tierCopy(key any, reasons uint32) (audit.Copy, bool)
	same(a, b audit.Copy) bool
}

// A round is a flight.Round, which holds the callers of one key. Its Result is the fetch.Round,
// which holds the read of the key. Package flight identifies a round by the key's text.
type round = flight.Round[string, fetch.Round]

// A Group runs the rounds of one way to read.
type Group = flight.Group[string, fetch.Round]

// Flights are the rounds of a loader that its reads share.
type Flights struct {
	Plain     *Group
	Fresh     *Group // skips memory; the same as Plain if that makes no difference
	Warming   *Group
	Refreshes *Group
	Direct    *Group // reads the database, for a shadow; otherwise nil
	// reads the database with one key per call, for the loads of batches; nil for a loader of
	// single rows
	Separate *Group
}

func (g *Flights) forMode(mode fetch.Mode) *Group {
	if mode == fetch.Fresh {
		return g.Fresh
	}
	return g.Plain
}

func (g *Flights) all() []*Group {
	all := []*Group{g.Plain, g.Fresh, g.Warming, g.Refreshes, g.Direct, g.Separate}
	return slices.DeleteFunc(all, func(g *Group) bool { return g == nil })
}

// Core is the part of a Reader that does not depend on the types of the loader.
type Core struct {
	Counters fetch.Counters
	Source   *source.Source // calls the load function
	Shadow   *audit.Shadow  // nil if there is no shadow
	Fetch    *fetch.Fetcher // reads the keys that memory does not serve
	Flights  Flights        // of rounds
	GroupLog *groups.Loader // what this process knows of the loader's invalidated groups

	cache   *Shared
	options CoreOptions
	names   keys.Namespace
	typed   typed
	memory  processMemory
	life    context.Context
	stop    context.CancelCauseFunc
}

// processMemory is a loader's part of the memory tier.
type processMemory struct {
	tier        *memory.Tier       // nil if the loader does not use it
	generations memory.Generations // the loader's generations
	bypass      atomic.Uint32      // the reasons why reads bypass the memory tier: bypassing, shadowing, noTier
}

// The bits of processMemory.bypass.
const (
	bypassing = 1 << iota // Loader.Bypass: no read uses memory
	shadowing             // callers do not use memory: see LoaderOptions.Shadow
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

// chunk returns the maximum number of keys in a call of the load function.
func (c *Core) chunk() int {
	if c.options.Batch {
		return c.options.BatchSize
	}
	return 1
}

// calls returns the maximum number of concurrent calls of the load function by one flight. More
// than MaxLoads would only wait for each other.
func (c *Core) calls() int {
	calls := fetch.MaxCalls
	for _, most := range []int{c.cache.MaxLoads, c.options.MaxLoads} {
		if most > 0 {
			calls = min(calls, most)
		}
	}
	return calls
}

// Counts are the counters of a Reader.
type Counts struct {
	Fetch  *fetch.Counters
	Source *source.Counters
	Shadow *audit.Shadow // nil if there is none
	Broken bool          // the circuit breaker is open
}

// Counts returns the counters.
func (c *Core) Counts() Counts {
	return Counts{&c.Counters, &c.Source.Counters, c.Shadow, c.Source.Broken()}
}

// Closed reports whether the cache is closed.
func (c *Core) Closed() bool { return c.Flights.Plain.Closed() }

// Close ends all reads with fault.Closed, and waits until they have ended.
func (c *Core) Close() {
	c.Fetch.Stop()
	c.Shadow.Close()
	c.stop(fault.Closed)
	var wg sync.WaitGroup
	for _, g := range c.Flights.all() {
		wg.Go(func() { g.Close(fault.Closed) })
	}
	wg.Wait()
	c.Shadow.Wait()
	c.Fetch.Wait()
}

// Bypass switches the caches off or on.
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

// ForgetFailure forgets that a load of a key has failed. A load in progress will not be
// remembered as a failure either.
func (c *Core) ForgetFailure(text string) { c.Source.Failures.End(text) }

// Raise starts a new generation of the loader in a range of slots.
func (c *Core) Raise(slots int, generation uint64) {
	g, next := &c.memory.generations, &memory.Generation{Number: generation, Since: time.Now()}
	for !g.Replace(slots, g[slots].Load(), next) {
	}
}

// Generation returns the loader's generation for the key with this name, or nil if it is not
// known.
func (c *Core) Generation(name string) *memory.Generation {
	return c.memory.generations.Range(uint8(c.cache.Conn.Range(name)))
}

// ForgetAll outdates all values of the loader in memory. It is called when an InvalidateAll did
// not reach Redis.
func (c *Core) ForgetAll() {
	m := &c.memory
	if m.tier == nil {
		return
	}
	for slots := range m.generations {
		if generation := m.generations[slots].Load(); generation == nil {
			// memory may hold values from the time before any generation is known
			m.tier.Clear(slots)
		} else {
			again := &memory.Generation{Number: generation.Number, Since: generation.Since}
			m.generations.Replace(slots, generation, again) // if this fails, there is a newer generation
		}
	}
}

// HasGroups reports whether LoaderOptions.Groups is set.
func (c *Core) HasGroups() bool { return c.options.Fetch.GroupsOf != nil }

// GroupName returns the loader's spelling of the name of a group, or an error if the loader has no
// such groups.
func (c *Core) GroupName(name string) (string, error) {
	if c.options.GroupName == nil || name == "" {
		return name, nil
	}
	return c.options.GroupName(name)
}

// Known returns the last number of the loader's log of groups for the key with this name.
func (c *Core) Known(name string) uint64 { return c.GroupLog.Last(uint8(c.cache.Conn.Range(name))) }

// discovered is called when another process turns out to use groups for this loader.
func (c *Core) discovered() {
	c.cache.Warn("another program invalidates groups of this loader, and this one does not set LoaderOptions.Groups: "+
		"each invalidation of a group outdates all values of this program", c.options.Fetch.Name, nil)
}

// LoadAlone loads the rows of rounds within the limits of all loads, without leases and without
// storing them.
func (c *Core) LoadAlone(ctx context.Context, rounds []*fetch.Round, call source.Call) []source.Row {
	ctx = fetch.WithPrimary(ctx, c.cache.MayHold) // because Redis was not asked: see PreferPrimary
	return c.Source.Load(ctx, fetch.Texts(rounds), c.typed.query(rounds), call)
}

// ErrNotStored is the error of a value that was loaded and could not be stored.
var ErrNotStored = errors.New("loaded, but not stored")

// KeyOf returns the argument of RefreshKeys and AuditRedis for the key of a text. ok is false if
// this loader does not read keys of that version, or cannot parse texts.
func (c *Core) KeyOf(version, text string) (key any, ok bool) {
	if version != c.options.Version {
		return nil, false
	}
	return c.typed.parse(text)
}
