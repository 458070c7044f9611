package bloom

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestServerless adds and looks up more keys at once than a command may have arguments where the
// service limits them, with a client of each kind.
func TestServerless(t *testing.T) {
	s := testenv.SharedServerless(t)
	plain := redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: testenv.Hang, WriteTimeout: testenv.Hang})
	defer plain.Close()
	for name, rdb := range map[string]redis.UniversalClient{"cluster": s.Client(t), "plain": plain} {
		// So low a rate takes 30 bits for each key.
		f, err := NewRedis(rdb, name, 200_000, 1e-9, &Options{Timeout: testenv.Hang / 2, watchInterval: -1})
		must(t, err)
		defer f.Close()
		built(t, f)
		next, err := f.begin(t.Context(), f.capacity) // as during a rebuild: keys are added to two generations
		must(t, err)
		must(t, f.prepare(t.Context(), next))
		for _, n := range []int{maxOneTripKeys, 5000} {
			keys := someKeys("key", n)
			must(t, f.AddMany(t.Context(), keys))
			maybe, err := f.MightContainMany(t.Context(), keys)
			must(t, err)
			for i, found := range maybe {
				if !found {
					t.Fatalf("%s: key %d of %d is hidden", name, i, n)
				}
			}
		}
		if s := f.Stats(); s.AddErrors+s.Failed > 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
