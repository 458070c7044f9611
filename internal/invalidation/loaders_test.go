package invalidation

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A poll that was sent before an announcement of our own, and whose reply comes after it, has the
// generation before. That is ignored, though by the clock both were in the same instant. The result
// of a later poll counts, also if it is less.
func TestGenerationsInOneInstant(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		var now [conn.Ranges]uint64
		l := &loaders{known: map[string]*known{"a": {onChange: func(rng int, generation uint64) {
			now[rng] = generation
		}}}}
		sent := time.Now()
		l.polled("a", 3, 7, sent)
		l.received("a", 3, 8)
		l.polled("a", 3, 7, sent)
		if now[3] != 8 {
			t.Errorf("of generation %d after 8 was announced", now[3])
		}
		time.Sleep(time.Nanosecond)
		l.polled("a", 3, 2, time.Now())
		if now[3] != 2 {
			t.Errorf("of generation %d, though Redis says 2", now[3])
		}
	})
}

// A poll of any number of loaders has commands that each server accepts, and reports the generation
// of each loader.
func TestPollOfManyLoaders(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		c := b.writer()
		registered := 0
		for _, n := range []int{0, 1, maxPolled, maxPolled + 1, 2100} {
			for ; registered < n; registered++ {
				c.Register(fmt.Sprint("loader-", registered), nil, func(int, uint64) {})
			}
			for _, full := range []bool{true, false} {
				requests := c.pollRequests(0, false, full)
				c.sendPolls(requests)
				var names []string
				var generations []uint64
				for _, r := range requests {
					if r.err != nil || r.reply.last == 0 || r.full != full {
						t.Fatalf("%d loaders: the last number is %d, complete: %v: %v", n, r.reply.last, r.full, r.err)
					}
					names, generations = append(names, r.names...), append(generations, r.reply.generations...)
				}
				if len(names) != n || len(generations) != n {
					t.Fatalf("%d loaders: %d names, %d generations", n, len(names), len(generations))
				}
				for _, i := range []int{0, n / 2, n - 1} {
					if n > 0 && generations[i] != b.parseNumber(c, 0, names[i]) {
						t.Errorf("%d loaders: the generation of %s is %d", n, names[i], generations[i])
					}
				}
			}
		}
	})
}

// refusal is an error reply of Redis.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// A poll that Redis refuses is reported.
func TestRefusedPollIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		b := newBackend(t, rdb)
		c := b.writer()
		var reports []string
		c.OnTrouble(func(step string, err error) { reports = append(reports, fmt.Sprint(step, ": ", err)) })
		refused := &refusing{err: refusal("ERR too many arguments")}
		rdb.AddHook(refused)
		c.pollers[0].poll()
		if len(reports) != 1 || !strings.Contains(reports[0], "refused a poll") ||
			!strings.Contains(reports[0], "too many arguments") {
			t.Errorf("reported: %q", reports)
		}
		refused.err = nil
		if c.pollers[0].poll(); len(reports) != 1 {
			t.Errorf("reported: %q", reports)
		}
	})
}
