package invalidation

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
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
		for _, n := range []int{0, 1, maxPolled, maxPolled + 1, 2100} {
			names, logs := make([]string, n), make([]*groups.Loader, n)
			for i := range names {
				names[i] = fmt.Sprint("loader-", i)
			}
			reply, err := c.poll(0, names, logs, false)
			if err != nil || len(reply.generations) != n || reply.last == 0 || reply.now == 0 {
				t.Fatalf("%d loaders: %d generations, the last number is %d: %v", n, len(reply.generations),
					reply.last, err)
			}
			for _, i := range []int{0, n / 2, n - 1} {
				if n > 0 && reply.generations[i] != b.parseNumber(c, 0, names[i]) {
					t.Errorf("%d loaders: the generation of %s is %d", n, names[i], reply.generations[i])
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
