package sharing

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestInterval: five relays pause as a lone one does. More pause so long that together they call
// about as often, but no longer than 30 s, and not all equally long.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		alone time.Duration
		n     int
		mean  time.Duration
	}{
		{time.Second, 0, time.Second},
		{time.Second, 1, time.Second},
		{time.Second, 5, time.Second},
		{time.Second, 10, 2 * time.Second},
		{200 * time.Millisecond, 100, 4 * time.Second},
		{200 * time.Millisecond, 1000, longest},
		{time.Millisecond, 1000, 200 * time.Millisecond},
		{time.Nanosecond, math.MaxInt, longest},
		{19 * time.Second, math.MaxInt, longest},
		{20 * time.Second, 1000, 20 * time.Second},
		{time.Hour, 1000, time.Hour},
	} {
		var sum time.Duration
		const times = 10_000
		for range times {
			got := Interval(c.alone, c.n)
			if c.n <= full || c.alone >= longest {
				if got != c.mean {
					t.Errorf("%v of %d relays: %v", c.alone, c.n, got)
				}
			} else if got < c.mean/2 || got > c.mean*3/2 {
				t.Errorf("%v of %d relays: %v", c.alone, c.n, got)
			}
			sum += got
		}
		if mean := sum / times; mean < c.mean*95/100 || mean > c.mean*105/100 {
			t.Errorf("%v of %d relays: %v on average", c.alone, c.n, mean)
		}
	}
}

// TestTurn: about five of any number of relays follow a notification.
func TestTurn(t *testing.T) {
	for _, n := range []int{0, 1, 5, 6, 100, 1000} {
		turns := 0
		const times = 1000
		for range times * n {
			if Turn(n) {
				turns++
			}
		}
		if want := times * min(n, full); turns < want*9/10 || turns > want*11/10 || n <= full && turns != want {
			t.Errorf("%d of %d relays follow", turns/times, n)
		}
	}
	if !Turn(0) {
		t.Error("a relay that does not know of others does not follow")
	}
}

type registry struct {
	testing.TB
	*conn.Conn
	key string
}

func newRegistry(t testing.TB, rdb redis.UniversalClient) *registry {
	c, err := conn.New(rdb, testenv.Hang)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &registry{t, c, Key("test", "queue")}
}

func (r *registry) register(id any, life time.Duration, want int) {
	r.Helper()
	if n, err := Register(r.Context(), r.Conn, r.key, fmt.Sprint(id), life); n != want || err != nil {
		r.Errorf("%v: %d, %v; want %d", id, n, err, want)
	}
}

// TestRegister: relays are counted until their registrations end or expire.
func TestRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		r := newRegistry(t, rdb)
		for i := range 300 {
			r.register(i, 30*time.Second, i+1)
		}
		r.register(7, 30*time.Second, 300)
		r.register(8, 0, 0)
		r.register(8, 0, 0)
		r.register(9, 30*time.Second, 299)
		time.Sleep(20 * time.Second)
		r.register(1, 30*time.Second, 299)
		r.register(2, 30*time.Second, 299)
		time.Sleep(15 * time.Second)
		r.register(1, 30*time.Second, 2)
		other := &registry{t, r.Conn, Key("test", "another queue")}
		other.register("a", 30*time.Second, 1)
		time.Sleep(30*time.Second + time.Millisecond)
		if keys := m.Keys(); len(keys) != 0 {
			t.Errorf("left: %v", keys)
		}
	})
}

// TestRegisterAfterTheClockWentBack: registrations of a clock that was ahead are not counted.
func TestRegisterAfterTheClockWentBack(t *testing.T) {
	_, rdb := testenv.Mini(t)
	r := newRegistry(t, rdb)
	ahead := time.Now().Add(time.Hour).UnixMilli()
	if err := rdb.ZAdd(t.Context(), r.key, redis.Z{Score: float64(ahead), Member: "ahead"}).Err(); err != nil {
		t.Fatal(err)
	}
	r.register("a", 30*time.Second, 1)
	r.register("b", 30*time.Second, 2)
}

// TestRegisterWhenFull: a Redis that is full counts relays.
func TestRegisterWhenFull(t *testing.T) {
	rdb := testenv.StartRedis(t, "--maxmemory-policy", "noeviction").Client(t)
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	r := newRegistry(t, rdb)
	r.register("a", time.Hour, 1)
	r.register("b", time.Hour, 2)
	r.register("a", 0, 0)
	r.register("b", time.Hour, 1)
}

// TestRegisterFails: a key of another type is an error, and is not changed.
func TestRegisterFails(t *testing.T) {
	_, rdb := testenv.Mini(t)
	r := newRegistry(t, rdb)
	if err := rdb.Set(t.Context(), r.key, "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := Register(t.Context(), r.Conn, r.key, "a", time.Second); n != 0 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
	r.Close()
	if n, err := Register(t.Context(), r.Conn, r.key, "a", time.Second); n != 0 || err == nil {
		t.Errorf("after Close: %d, %v", n, err)
	}
}
