package conn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestSlotIsThatOfTheSpecification(t *testing.T) {
	for key, want := range map[string]int{
		"123456789":           0x31C3, // the check value of CRC-16/XMODEM, 12739
		"":                    0,
		"foo":                 12182,
		"{foo}":               12182,
		"{foo}bar":            12182,
		"bar{foo}":            12182,
		"{foo}{bar}":          12182,
		"bar{foo}}":           12182,
		"}{foo}":              12182,
		"{user1000}.followed": 3443,
		"user1000":            3443,
	} {
		if got := slot(key); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
	if slot("foo{{bar}}zap") != slot("{bar") {
		t.Error("a tag begins at the first brace, and ends at the next that closes")
	}
	for _, key := range []string{"foo{}{bar}", "{}", "{}foo", "{foo", "foo}", "}foo{"} { // have no tag
		if n := slot(key); n == slot("foo") || n == slot("bar") {
			t.Errorf("%q: %d, that of a part", key, n)
		}
	}
}

// Each key has the slot that Redis reports for it.
func TestSlotIsThatOfRedis(t *testing.T) {
	c := testenv.SharedCluster(t).Nodes[0].Client(t)
	keys := []string{"", "{", "}", "{}", "{}{a}", "a{}{b}", "{{}}", "{a}b{c}", "}{", "}{a}", "{\x00}", "\xff{\xfe}\xfd",
		"123456789"}
	r := rand.New(rand.NewPCG(1, 0))
	alphabet := "{}{}ab\x00\xff\r\n "
	n := 5_000
	if testenv.Accepting {
		n = 200_000
	}
	for range n {
		b := make([]byte, r.IntN(24))
		for i := range b {
			if b[i] = byte(r.Uint32()); r.IntN(3) > 0 {
				b[i] = alphabet[r.IntN(len(alphabet))]
			}
		}
		keys = append(keys, string(b))
	}
	cmds, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.ClusterKeySlot(t.Context(), key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		if got, want := slot(key), int(cmds[i].(*redis.IntCmd).Val()); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
}

func TestTagIsInTheMiddleOfItsRange(t *testing.T) {
	c, err := New(lazyCluster(t), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	const size = slots / Ranges
	seen := map[string]bool{}
	for r := range Ranges {
		tag := Tag(r)
		key := "prefix::announced:{" + tag + "}"
		if tag == "" || seen[tag] || c.Range(key) != r || c.Range(tag) != r {
			t.Errorf("range %d: tag %q, whose key is in %d", r, tag, c.Range(key))
		}
		if offset := slot(key) % size; offset < size/4 || offset > size*3/4 {
			t.Errorf("range %d: tag %q is at %d of %d", r, tag, offset, size)
		}
		seen[tag] = true
	}
}

// What is kept in Redis under these keys would be lost if they were others in the next version.
func TestTagsStayAsTheyAre(t *testing.T) {
	got := ""
	for r := range Ranges {
		got += Tag(r) + " "
	}
	if want := "18 3 65 140 19 2 64 141 106 1 67 49 107 0 66 48 "; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRangesDivideTheSlots(t *testing.T) {
	cluster, err := New(lazyCluster(t), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	single, err := New(lazyClient(t), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if cluster.InUse() != Ranges || !cluster.Cluster() || single.InUse() != 1 || single.Cluster() {
		t.Errorf("%d and %d ranges", cluster.InUse(), single.InUse())
	}
	var hits [Ranges]int
	for i := range 16_000 {
		key := fmt.Sprint("key:", i)
		hits[cluster.Range(key)]++
		if want := slot(key) >> 10; cluster.Range(key) != want {
			t.Fatalf("%q is in %d, want %d", key, cluster.Range(key), want)
		}
		if got := single.Range(key); got != 0 {
			t.Fatalf("on a single server %q is in %d", key, got)
		}
	}
	for r, n := range hits {
		if n < 800 || n > 1200 {
			t.Errorf("range %d has %d of 16000 keys", r, n)
		}
	}
}

// What is kept in one slot is one range, on a cluster as well, which is still taken for one.
func TestHome(t *testing.T) {
	for _, rdb := range []redis.UniversalClient{lazyCluster(t), lazyClient(t)} {
		home, err := NewHome(rdb, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			if r := home.Range(fmt.Sprint("key:", i)); r != 0 {
				t.Fatalf("key %d is in range %d", i, r)
			}
		}
		if _, cluster := rdb.(*redis.ClusterClient); home.InUse() != 1 || home.Cluster() != cluster {
			t.Errorf("%d ranges, a cluster: %v", home.InUse(), home.Cluster())
		}
	}
	if home, err := NewHome(nil, time.Second); home != nil || err == nil {
		t.Errorf("%v, %v", home, err)
	}
}

func lazyClient(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// lazyCluster is a client that has not met its cluster, and will not.
func lazyCluster(t *testing.T) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRedirects: -1, ClusterSlots: func(context.Context) ([]redis.ClusterSlot,
			error) {
			return nil, context.DeadlineExceeded
		},
	})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// The documentation says how many ranges two nodes share, when all nodes have the same number of
// slots, and which slots keep three nodes from sharing any.
func TestSharedRanges(t *testing.T) {
	shared := func(borders ...int) (n int) {
		for _, first := range borders { // the first slot of a node
			if first%(slots/Ranges) != 0 {
				n++
			}
		}
		return n
	}
	for nodes, want := range map[int]int{2: 0, 3: 2, 4: 0, 8: 0, 16: 0} {
		var borders []int
		for i := range nodes {
			borders = append(borders, i*slots/nodes)
		}
		if n := shared(borders...); n != want {
			t.Errorf("%d nodes share %d ranges", nodes, n)
		}
	}
	if n := shared(5120, 10240); n != 0 {
		t.Errorf("the nodes of the documentation share %d ranges", n)
	}
}
