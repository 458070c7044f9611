// Package bench compares cacheaside with the libraries that its users know, with the same work in
// the same run. `make compare` prints the tables of docs/accept/benchmarks.md. Each peer has a
// file, peer_NAME.go, which describes the library's settings: the best that its documentation
// recommends for this work.
package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// Row is the value that all caches store: about 290 bytes as JSON, which is the codec of all of
// them.
type Row struct {
	ID    int64
	Name  string
	Text  string
	Price float64
}

// ErrNotFound is returned by load functions and by the Get of each peer for a row that does not
// exist.
var ErrNotFound = errors.New("no such row")

// Config has the settings of a workload for a cache. A zero field means the peer's own default.
type Config struct {
	Redis string // address
	// addresses of a Redis Cluster, instead of Redis; only for peers with Cluster
	Cluster []string
	Load    func(ctx context.Context, key string) (*Row, error) // from the database
	// Load for a batch; nil: call Load for each key
	LoadMany func(ctx context.Context, keys []string) (found map[string]*Row, err error)

	TTL       time.Duration // of a row in Redis (in memory, for peers without Redis)
	NullTTL   time.Duration // of the absence of a row
	MemoryTTL time.Duration // of a row in memory, for peers with a separate memory tier

	NoMemory    bool  // no memory tier, for peers with a separate one
	MemoryBytes int64 // memory budget, for peers that count bytes
	MemoryRows  int   // the same budget, for peers that count entries
	Grouped     bool  // each row belongs to a group, and Invalidate invalidates the group; only for peers with Groups
	Patient     bool  // timeouts of several seconds, so that peers with short ones can be measured on a busy machine
}

// A Cache is an open peer. It is safe for concurrent use.
type Cache interface {
	Get(ctx context.Context, key string) (*Row, error)
	Close() error
}

// A Batcher is a Cache that reads many rows in one call. A key without a row is not in the map.
type Batcher interface {
	GetMany(ctx context.Context, keys []string) (map[string]*Row, error)
}

// An Invalidator is a Cache that can invalidate a row. Invalidate is called after a write to the
// database.
type Invalidator interface {
	Invalidate(ctx context.Context, key string) error
}

// A Peer is a library, or a floor: the simplest code that does the same work.
type Peer struct {
	Name       string
	Module     string // module path; its version is the one in go.mod
	Settings   string // described for readers of the tables
	Has        string // features that cacheaside lacks
	Floor      bool
	Memory     bool // it has a memory tier
	Redis      bool // it has a Redis tier
	Cluster    bool // its adapter reads single keys and batches on a Redis Cluster
	Nulls      bool // it caches the absence of a row
	Stale      bool // it serves a row after its TTL while it reloads it
	Groups     bool // it can invalidate a group of rows in one call
	Notifies   bool // Invalidate reaches the memory of other processes
	Unpromoted bool // a row that it finds in Redis does not get into its memory
	Later      bool // Invalidate returns before the row is removed from its own memory
	Open       func(Config) (Cache, error)
}

var registered []Peer

// groupOf returns the group of a row, if Config.Grouped is set.
func groupOf(key string) string { return "group of " + key }

// register adds a peer. The init function of each peer's file calls it.
func register(p Peer) { registered = append(registered, p) }

// Peers returns all libraries, cacheaside first, then sorted by name.
func Peers() []Peer { return pick(func(p Peer) bool { return !p.Floor }) }

// Floors returns all floors, sorted by name.
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
