package promises

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A program without Groups follows the invalidations of groups within MaxStaleness, and warns,
// although no program with Groups has ever read the loader. The writers are a program with the
// loader, such as a consumer of the database's log; a program without it, such as a relay or the
// tool; and the program itself.
func TestProgramWithoutGroupsFollowsWriters(t *testing.T) {
	group := cacheaside.Key{Loader: "row", Text: "red", Group: true}
	for writer, invalidate := range map[string]func(ctx context.Context, rdb redis.UniversalClient, plain,
		other process) error{
		"a loader that is not read": func(ctx context.Context, _ redis.UniversalClient, _, other process) error {
			return other.InvalidateGroup(ctx, "red")
		},
		"without the loader": func(ctx context.Context, rdb redis.UniversalClient, _, _ process) error {
			relay, err := cacheaside.New(rdb, &cacheaside.Options{MemoryBytes: -1})
			if err != nil {
				return err
			}
			defer relay.Close()
			return relay.InvalidateKeys(ctx, group)
		},
		"itself": func(ctx context.Context, _ redis.UniversalClient, plain, _ process) error {
			return plain.cache.InvalidateKeys(ctx, group)
		},
	} {
		for tier, o := range map[string]cacheaside.Options{"memory": steady, "no memory": steadyNoMemory} {
			t.Run(writer+" "+tier, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, b := embedded(t)
					d := newTable(map[int]string{1: "red old", 2: "red old"})
					var log testenv.Log
					o.Logger = log.Logger()
					plain := start(t, b, d, o, nil)
					defer plain.cache.Close()
					other := start(t, b, d, steady, byParityAndColor())
					defer other.cache.Close()
					plain.want(t, 1, "red old", nil)
					plain.want(t, 2, "red old", nil)
					plain.settle()
					for _, row := range []string{"red new", "red newer"} {
						d.write(1, row)
						d.write(2, row)
						if err := invalidate(t.Context(), b.client(t), plain, other); err != nil {
							t.Fatal(err)
						}
						time.Sleep(o.MaxStaleness)
						plain.want(t, 1, row, nil)
						plain.freshly(t, 2, row)
					}
					loads := d.loads.Load()
					plain.want(t, 1, "red newer", nil)
					plain.freshly(t, 2, "red newer")
					if n := d.loads.Load(); n != loads {
						t.Errorf("%d loads of current values", n-loads)
					}
					if n := strings.Count(log.String(), "LoaderOptions.Groups"); n != 1 {
						t.Errorf("%d warnings", n)
					}
					if err := plain.InvalidateGroup(t.Context(), "red"); !errors.Is(err, fault.NoGroups) {
						t.Error(err)
					}
				})
			})
		}
	}
}

// With a memory tier, the message of the first invalidation is sufficient.
func TestProgramWithoutGroupsFollowsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "red old"})
		plain, other := start(t, b, d, steady, nil), start(t, b, d, steady, byParityAndColor())
		defer plain.cache.Close()
		defer other.cache.Close()
		plain.remembers(t, 1, "red old")
		d.write(1, "red new")
		other.invalidateGroup(t, "red")
		synctest.Wait()
		plain.want(t, 1, "red new", nil)
	})
}
