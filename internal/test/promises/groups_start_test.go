//go:build accept

package promises

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const startLoaders = 10

// fillScript adds ARGV[3] members to a set of groups, with the numbers above ARGV[1]. ARGV[2] is
// the number of members before them.
var fillScript = redis.NewScript(`
for i = ARGV[2] + 1, ARGV[2] + ARGV[3] do redis.call('ZADD', KEYS[1], string.format('%.0f', ARGV[1] + i), struct.pack('>I8', i)) end`)

// starter starts processes with the loaders of one prefix.
type starter struct {
	rdb    redis.UniversalClient
	prefix string
}

// start opens a cache with all loaders, and returns the time until the first of them serves a hit.
func (s starter) start(t *testing.T, mayLoad bool) (first time.Duration) {
	t.Helper()
	began := time.Now()
	c, err := cacheaside.New(s.rdb, &cacheaside.Options{Prefix: s.prefix, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all [startLoaders]*cacheaside.Loader[int64, benchRow]
	for i := range all {
		if all[i], err = cacheaside.NewLoader(c, fmt.Sprint("l", i),
			func(_ context.Context, id int64) (benchRow, error) {
				if !mayLoad {
					t.Errorf("%s: a cached row is loaded", s.prefix)
				}
				return row(id), nil
			}, &cacheaside.LoaderOptions{TTL: time.Hour,
				Groups: cacheaside.GroupsOf(func(id int64, _ benchRow) []string {
					return []string{strconv.Itoa(int(id))}
				})}); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range all {
		for id := range int64(4) { // on a cluster in several ranges
			if _, err := l.Get(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if first == 0 {
				first = time.Since(began)
			}
		}
	}
	return first
}

// TestStartWithManyGroups compares the time until a new process serves hits of ten loaders, with
// full and with empty sets of groups. The two sides take turns.
func TestStartWithManyGroups(t *testing.T) {
	for name, rdb := range map[string]redis.UniversalClient{"server": testenv.SharedRedis(t).Client(t),
		"cluster": testenv.SharedCluster(t).Client(t)} {
		t.Run(name, func(t *testing.T) {
			empty, full := starter{rdb, "empty"}, starter{rdb, "full"}
			empty.start(t, true)
			full.start(t, true)
			ranges, members := 1, testenv.AtSize(2000, 65_536)
			if name == "cluster" {
				ranges = conn.Ranges
			}
			for i := range startLoaders {
				for r := range ranges {
					key := keys.Groups(full.prefix, fmt.Sprint("l", i), conn.Tag(r))
					// Short scripts do not block a node for long.
					for part := 0; part < members; part += 4096 {
						if err := fillScript.Run(t.Context(), rdb, []string{key}, time.Now().UnixMicro(), part,
							min(members-part, 4096)).Err(); err != nil && err != redis.Nil {
							t.Fatal(err)
						}
					}
				}
			}
			full.start(t, true) // loads the rows that the new numbers outdate
			runs := testenv.AtSize(3, 41)
			var times [2][]float64
			for run := range runs {
				for side := range 2 {
					side = (side + run) % 2
					times[side] = append(times[side],
						float64([]starter{empty, full}[side].start(t, false).Microseconds()))
				}
			}
			ratio := middle(times[1]) / middle(times[0])
			t.Logf("%s: the first hits of %d loaders with %d groups after %.1f ms, with none after %.1f ms: %.2f", name,
				startLoaders, members,
				middle(times[1])/1000, middle(times[0])/1000, ratio)
			if testenv.Accepting && ratio > 2 {
				t.Errorf("the first hits come %.2f times as late, want at most 2", ratio)
			}
		})
	}
}
