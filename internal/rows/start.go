package rows

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/limit"
	"github.com/cacheaside/cacheaside/internal/source"
)

func (c *Core) start(cache *Shared, o CoreOptions, names keys.Namespace, typed typed) {
	c.cache, c.options, c.names, c.typed = cache, o, names, typed
	c.life, c.stop = context.WithCancelCause(context.Background())
	c.memory.setup(cache, &o.Fetch)
	c.GroupLog = c.newLog()
	c.Source = c.newSource()
	if o.Shadow > 0 {
		c.Shadow = audit.NewShadow(o.Shadow, c.Counters.BackgroundRefreshes.Load)
		c.memory.bypass.Or(shadowing)
	}
	c.Fetch = c.newFetcher()
	c.Flights = c.newFlights()
}

// newLog returns the log of the loader's groups.
func (c *Core) newLog() *groups.Loader {
	o := groups.Options{
		All: keys.GroupHash(c.options.Fetch.Name, ""), InUse: c.HasGroups(), Local: c.cache.Store == nil,
		Lag: c.cache.ReplicaLag, Discovered: c.discovered,
	}
	if c.memory.tier != nil {
		o.Forget, o.Void = c.memory.tier.Forget, c.ForgetAll
	}
	if holds := c.cache.GroupHolds; holds != nil {
		o.Hold = func(stable uint64) { holds.Set([]uint64{stable}) }
	}
	return groups.New(o)
}

func (c *Core) newSource() *source.Source {
	o, fetchOptions := c.options, c.options.Fetch
	return source.New(source.Options{
		Batch: o.Batch, LoadTimeout: fetchOptions.LoadTimeout, ErrorTTL: fetchOptions.ErrorTTL, NotFound: o.NotFound,
		BadKey: o.BadKey,
		Admission: limit.Admission{
			Breaker: limit.NewBreaker(o.BreakAt, o.BreakFor, c.logBreaker),
			Loader:  limit.New(limit.Options{AtOnce: o.MaxLoads, Queue: c.cache.MaxQueue}),
			Shared:  c.cache.Limit,
			MaxWait: c.cache.QueueTimeout,
		},
		Life: c.life,
		Observe: func(ctx context.Context, keys int) (context.Context, func(error)) {
			return c.cache.Observe(ctx, fetch.OpLoad, fetchOptions.Name, keys)
		},
		Warn:     func(message string, err error) { c.cache.Warn(message, fetchOptions.Name, err) },
		Caught:   c.cache.Caught,
		Panicked: func(err error) bool { _, ok := c.cache.Panicked(err); return ok },
	})
}

// logBreaker logs that the circuit breaker has opened or closed.
func (c *Core) logBreaker(open bool) {
	if name := c.options.Fetch.Name; open {
		c.cache.Warn("the circuit breaker is open: most loads have failed", name, nil)
	} else {
		c.cache.Inform("the circuit breaker is closed", name)
	}
}

// newFetcher returns the Fetcher of the keys that memory does not serve.
func (c *Core) newFetcher() *fetch.Fetcher {
	o := c.options.Fetch
	o.Chunk, o.Calls = c.chunk(), c.calls()
	o.Keys, o.Memory, o.Generations, o.Source = c.names, c.memory.tier, &c.memory.generations, c.Source
	o.Groups = c.GroupLog
	o.Items, o.Codec, o.Counters = c.typed, c.typed, &c.Counters
	o.Life, o.Bypassed = c.life, c.Bypassed
	if c.options.Filter != nil {
		o.Filter = c.options.Filter
	}
	o.Query = c.typed.query
	if c.Shadow != nil {
		o.RedisDown = fetch.FailWhenDown // otherwise each read would load from the database twice during an outage
	}
	return fetch.New(c.cache.Shared, o)
}

func (c *Core) newFlights() Flights {
	g := Flights{Plain: c.group(fetch.Plain), Warming: c.group(fetch.Warming)}
	g.Fresh = g.Plain
	if c.cache.Store != nil || c.memory.tier != nil || c.Fetch.HasFreshFilter() {
		// with Redis, another process may use groups
		g.Fresh = c.group(fetch.Fresh)
	}
	g.Refreshes = flight.New(flight.Hooks[string, fetch.Round]{
		Run: func(ctx context.Context, f *flight.Flight[string, fetch.Round]) {
			c.Fetch.Refresh(ctx, fetched(f.Rounds), flightRounds{f})
		},
		Await: c.await, StillValid: never, Caught: c.cache.Caught,
	})
	if c.Shadow != nil {
		g.Direct = c.directGroup(c.chunk(), c.await)
	}
	if c.options.Batch {
		g.Separate = c.directGroup(1, c.awaitSeparate)
	}
	return g
}

// group returns a new group for one way to read.
func (c *Core) group(mode fetch.Mode) *Group {
	late := c.Fetch.Current
	if mode == fetch.Fresh {
		late = never
	}
	return flight.New(flight.Hooks[string, fetch.Round]{
		Inline: func(ctx context.Context, rounds []*round) (ended, open []*round) {
			c.Fetch.ReadInline(ctx, mode, fetched(rounds))
			return splitEnded(rounds)
		},
		Run: func(ctx context.Context, f *flight.Flight[string, fetch.Round]) {
			c.Fetch.Read(ctx, mode, fetched(f.Rounds), flightRounds{f})
		},
		Await: c.await, StillValid: late, Caught: c.cache.Caught,
	})
}
