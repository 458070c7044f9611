// Package bench sets cacheaside beside the libraries that its users know, on the same work, in the
// same run. `make compare` prints the tables of docs/accept/benchmarks.md. Each peer is one file,
// peer_NAME.go, which names the library's settings: the best that its documentation gives for the
// work here.
package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// Row is what all caches keep: some 290 bytes as JSON, which is the codec of all of them.
type Row struct {
	ID    int64
	Name  string
	Text  string
	Price float64
}

// ErrNotFound is what load functions return for a row that does not exist, and what every adapter's
// Get returns for it.
var ErrNotFound = errors.New("no such row")

// Config is what a workload asks of a cache. Its zero fields are the peer's own defaults.
type Config struct {
	Redis    string                                                                      // its address
	Load     func(ctx context.Context, key string) (*Row, error)                         // from the database
	LoadMany func(ctx context.Context, keys []string) (found map[string]*Row, err error) // the same for a batch; nil: by Load, one by one

	TTL       time.Duration // how long a row is kept in Redis (in memory, for peers without Redis)
	NullTTL   time.Duration // how long that there is none
	MemoryTTL time.Duration // how long a row is kept in memory, where that is a tier of its own

	NoMemory    bool  // no memory tier, where it is a tier of its own
	MemoryBytes int64 // its budget, for peers that count bytes
	MemoryRows  int   // the same budget, for peers that count entries
	Patient     bool  // time-outs of several seconds: for measurements on a busy machine, of peers that have short ones
}

// Cache is a peer at work. It is safe for concurrent use.
type Cache interface {
	Get(ctx context.Context, key string) (*Row, error)
	Close() error
}

// Batcher is a Cache that reads many rows at once. A key that is missing in the map has no row.
type Batcher interface {
	GetMany(ctx context.Context, keys []string) (map[string]*Row, error)
}

// Invalidator is a Cache whose rows can be removed, to be called after a write to the database.
type Invalidator interface {
	Invalidate(ctx context.Context, key string) error
}

// Peer is a library, or a floor: what the fewest means for the same work cost.
type Peer struct {
	Name     string
	Module   string // its path: the version is that of go.mod
	Settings string // in words, for the reader of the tables
	Has      string // what it has and cacheaside has not
	Floor    bool
	Memory   bool // it has a memory tier
	Redis    bool // it has Redis
	Nulls    bool // it remembers that a row does not exist
	Stale    bool // a row outlives its TTL, to be served while it is reloaded
	Tells    bool // Invalidate reaches the memory of other processes
	Later    bool // Invalidate returns before the row has gone from its own memory
	Open     func(Config) (Cache, error)
}

var registered []Peer

// register is called by the init function of each peer's file.
func register(p Peer) { registered = append(registered, p) }

// Peers are all libraries, cacheaside first, then by name.
func Peers() []Peer { return pick(func(p Peer) bool { return !p.Floor }) }

// Floors are all floors, by name.
func Floors() []Peer { return pick(func(p Peer) bool { return p.Floor }) }

func pick(want func(Peer) bool) []Peer {
	some := slices.DeleteFunc(slices.Clone(registered), func(p Peer) bool { return !want(p) })
	slices.SortFunc(some, func(a, b Peer) int { return strings.Compare(rank(a), rank(b)) })
	return some
}

func rank(p Peer) string {
	if p.Name == own {
		return ""
	}
	return p.Name
}

// own is the name of this library.
const own = "cacheaside"
