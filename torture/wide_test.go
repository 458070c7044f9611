package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// The wide mix extends the usual one: rows that grow and shrink between 0 and 16 KB in a memory
// tier of 1 MiB, loads that call another loader under a limit of six loads per process, writes with
// a Strict Writer in addition to plain writes, and in every second run a replica lag.
const (
	wideMemory = 1 << 20
	wideLoads  = 6
	wideLag    = 20 * time.Millisecond
	wideFill   = 16 << 10
)

// TestWide: under the wide mix too, no read is stale for longer than promised.
func TestWide(t *testing.T) {
	d := length(t, "TORTURE_TIME", 4*time.Second)
	for n, topology := range topologies {
		if !wanted(topology) || !long() && topology != "single" {
			continue
		}
		t.Run(topology, func(t *testing.T) {
			for _, seed := range seeds(t, uint64(21+n)) {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					torture(t, config{Topology: topology, Seed: seed, Groups: true, Wide: true,
						Listeners: listening(topology), MaxStaleness: 2 * time.Second}, d)
				})
			}
		})
	}
}

// wide contains the additions of the wide mix to a process.
type wide struct {
	parts  *cacheaside.Loader[int, row] // called by loads
	writer *consistency.Writer
}

func newWide(w *worker) (*wide, error) {
	x := &wide{}
	var err error
	x.parts, err = cacheaside.NewLoader(w.loader.cache, "part", w.query, w.loaderOptions())
	if err != nil {
		return nil, err
	}
	x.writer, err = consistency.NewWriter(sqlx.NewDb(w.db, "mysql"), w.loader.cache,
		&consistency.Options{Level: consistency.Strict})
	return x, err
}

// fill returns the filler of a version of a row. Its length varies.
func fill(key int, version int64) []byte {
	n := (version*1237 + int64(key)*331) % wideFill
	return bytes.Repeat([]byte{byte(version)}, int(n))
}

// nested reports whether the row of a key is loaded through another loader.
func (w *worker) nested(key int) bool { return w.wide != nil && key%3 == 1 }

// source reads a row as a load of the wide mix does.
func (w *worker) source(ctx context.Context, key int) (row, error) {
	if w.nested(key) {
		return w.wide.parts.Get(ctx, key, cacheaside.Fresh)
	}
	return w.query(ctx, key)
}

// whole reports whether all parts of a row have the same version.
func (w *worker) whole(r row) bool {
	return w.wide == nil || bytes.Equal(r.Fill, fill(r.Key, r.Version))
}

// keysOf returns the keys of all loaders that show a row. Those that others load from come first.
func (w *worker) keysOf(key int) (keys []cacheaside.Key) {
	if w.nested(key) {
		keys = append(keys, w.wide.parts.Key(key))
	}
	return append(keys, w.loader.Key(key))
}

// strictly writes a row with the Writer. After an error the row may or may not have changed, so the
// caller invalidates it.
func (w *worker) strictly(ctx context.Context, op history.Op, r *rand.Rand) (version int64, err error) {
	key := int(op.Key)
	err = w.wide.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE "+w.Table+" SET v = v + 1 WHERE id = ?", key); err != nil {
			return err
		}
		if err := tx.GetContext(ctx, &version, "SELECT v FROM "+w.Table+" WHERE id = ?", key); err != nil {
			return err
		}
		if r.IntN(20) == 0 {
			return errors.New("rolled back")
		}
		return nil
	}, w.keysOf(key)...)
	return version, err
}

// plain runs the operations of a program that mistakes a node of a cluster for a single server,
// until stop is closed. None of its invalidations, refreshes and holds may succeed, under all
// faults, and no other process may see its rows.
func plain(t *testing.T, c config, addr string, stop <-chan struct{}) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	defer rdb.Close()
	cache, err := cacheaside.New(rdb, &cacheaside.Options{
		Prefix: c.Prefix, RedisTimeout: c.RedisTimeout, StrictWrites: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Error(err)
		return
	}
	defer cache.Close()
	// No other process may see this row.
	old := func(context.Context, int) (row, error) { return row{}, nil }
	l, err := cacheaside.NewLoader(cache, "row", old,
		&cacheaside.LoaderOptions{Groups: cacheaside.GroupsOf(groupNames)})
	if err != nil {
		t.Error(err)
		return
	}
	tried := 0
	for key := 0; ; key = (key + 1) % (hotKeys + warmKeys) {
		select {
		case <-stop:
			t.Logf("a client of one cluster node was refused %d times", tried)
			return
		case <-time.After(5 * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		for name, do := range map[string]func() error{
			"Invalidate":      func() error { return l.Invalidate(ctx, key) },
			"Expire":          func() error { return l.Expire(ctx, key) },
			"InvalidateAll":   func() error { return l.InvalidateAll(ctx) },
			"InvalidateGroup": func() error { return l.InvalidateGroup(ctx, groupName(uint32(key))) },
			"InvalidateKeys":  func() error { return cache.InvalidateKeys(ctx, l.Key(key), l.AllKeys()) },
			"Refresh":         func() error { _, err := l.Refresh(ctx, key); return err },
			"Hold":            func() error { _, err := cache.Hold(ctx, l.Key(key)); return err },
		} {
			if err := do(); err == nil {
				t.Errorf("%s by a client of one node of a cluster returns nil", name)
			}
			tried++
		}
		_, _ = l.Get(ctx, key, cacheaside.Fresh) // loads if the node is unreachable
		cancel()
	}
}
