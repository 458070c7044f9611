package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() {
	variants = append(variants, Peer{Name: own + " with a filter", Module: "github.com/cacheaside/cacheaside",
		Memory: true, Redis: true, Open: openFiltered})
}

// filteredCache is cacheaside with a filter that contains all rows: a replica, as in a fleet. The
// filter of the connecting reads is the same.
type filteredCache struct {
	Cache
	rdb    *redis.Client
	filter *bloom.Redis
	copy   *bloom.Replica
}

func openFiltered(c Config) (Cache, error) {
	const rows = 100_000
	ctx := context.Background()
	f := &filteredCache{rdb: redis.NewClient(&redis.Options{Addr: c.Redis, ContextTimeoutEnabled: true})}
	var err error
	if f.filter, err = bloom.NewRedis(f.rdb, "rows", rows, 0.01, nil); err != nil {
		return nil, err
	}
	if _, err = f.filter.Rebuild(ctx, bloom.Keys(append(keys(rows), "connect")...),
		&bloom.RebuildOptions{Settle: -1}); err != nil {
		return nil, err
	}
	if f.copy, err = bloom.NewReplica(f.filter); err != nil {
		return nil, err
	}
	for !f.filter.Stats().Copied { // until then the filter asks Redis
		time.Sleep(time.Millisecond)
	}
	f.Cache, err = openOwn(c, f.copy)
	return f, err
}

func (f *filteredCache) Close() error {
	return errors.Join(f.Cache.Close(), f.copy.Close(), f.filter.Close(), f.rdb.Close())
}

// TestMissingRows measures reads of rows that do not exist.
func TestMissingRows(t *testing.T) {
	reads := size(10_000, 400)
	table := &Table{Section: 8, Title: "Rows that do not exist",
		Text: fmt.Sprintf("One process does %s reads, 16 at a time, of the same 100 keys without a row. Then it does "+
			"as many reads of different keys without a row. The absence of a row may be cached for a minute. The "+
			"filter has 100,000 rows with 1 %% false positives, and is copied from Redis into the process.",
			thousands(fmt.Sprint(reads))),
		Head: []string{"", "again and again: loads", "Redis commands a read", "all different: loads",
			"Redis commands a read", "keys in Redis then", "errors"}}
	all := entrants(t)
	if i := slices.IndexFunc(all, func(p Peer) bool { return p.Name == own }); i >= 0 {
		all = slices.Insert(all, i+1, variants...)
	}
	for _, p := range slices.Concat(all, Floors()) {
		t.Run(p.Name, func(t *testing.T) {
			r := testenv.SharedRedis(t)
			admin := r.Client(t)
			c := spawnCrew(t, p, 1, Config{Redis: r.Addr, TTL: time.Minute, NullTTL: time.Minute, Patient: !full})
			c.rows(t, map[string]dbRow{"": {}})
			var again, different []string
			for i := range reads {
				again = append(again, fmt.Sprint("missing", i%100))
				different = append(different, fmt.Sprint("guessed", i))
			}
			row := []any{entrant(p)}
			wrong := 0
			var loads []int
			for _, asked := range [][]string{again, different} {
				admin.ConfigResetStat(t.Context())
				got := callersOf(c.do(t, childOrder{Do: "get", Keys: asked, Turns: 16}))
				executed := any("has no Redis")
				if p.Redis {
					executed = commands(t, r) / float64(reads)
				}
				n := len(c.loads(t))
				loads = append(loads, n)
				row = append(row, thousands(fmt.Sprint(n)), executed)
				for _, g := range got {
					if g.Err != gotAbsent {
						wrong++
					}
				}
			}
			kept := any("has no Redis")
			if p.Redis {
				kept = whole(float64(admin.DBSize(t.Context()).Val()))
			}
			table.Row(append(row, kept, wrong)...)
			switch p.Name {
			case own:
				if loads[0] != 100 || loads[1] != reads || wrong != 0 {
					t.Errorf("%v loads, %d errors", loads, wrong)
				}
			case own + " with a filter":
				if loads[0] > 10 || loads[1] > reads/10 || wrong != 0 {
					t.Errorf("%v loads, %d errors", loads, wrong)
				}
			}
		})
	}
	publish(t, table)
}
