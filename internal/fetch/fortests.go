package fetch

import "time"

// Tests of package cacheaside need these, nothing else.

// Begin fixes what must be known of a round before its first look at Redis.
func (l *Fetcher) Begin(r *Round) { l.begin(r) }

// Remember offers the value of a round that has begun to the memory tier.
func (l *Fetcher) Remember(r *Round, ttl time.Duration) { l.putInMemory(r, ttl, 0, false) }

// Refreshing tells whether a round's key is being loaded in the background.
func (l *Fetcher) Refreshing(r *Round) bool { return l.refreshes.active(l.Items.Hash(r)) }

// SetDie makes early refreshes go by numbers that are not those of chance.
func (l *Fetcher) SetDie(die func() float64) { l.die = die }
