//go:build accept

package pglogical

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The primary is killed at any moment while rows are written and read. With a slot that the standby
// has copied no position is lost. Otherwise each failover is a lost position. No key is stale.
func TestFailovers(t *testing.T) {
	for n := range testenv.AtSize(2, 10) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if testenv.SharedPostgres(t).Major(t) < 17 {
				failsOverUnderLoad(newPair(t, testenv.StartPostgres(t)), 1)
				return
			}
			failsOverUnderLoad(withSlots(t), 0)
		})
	}
}

func failsOverUnderLoad(p *pair, lost int64) {
	c, _ := p.consume()
	if p.slots {
		p.synchronized()
	}
	ctx, stop := context.WithCancel(p.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for range 2 {
		work.Go(func() {
			for ctx.Err() == nil {
				id := 1 + rand.Int64N(sourcetest.BlockRows-1) // want writes 0
				_, _ = p.DB.ExecContext(ctx, [...]string{
					fmt.Sprintf("UPDATE users SET n = n + 1 WHERE id = %d", id),
					fmt.Sprintf("DELETE FROM users WHERE id = %d", id),
					fmt.Sprintf("INSERT INTO users VALUES (%d, '%s', %d) ON CONFLICT DO NOTHING", id,
						sourcetest.Email(id), rand.Int32()),
				}[rand.IntN(3)])
				time.Sleep(rand.N(4 * time.Millisecond))
			}
		})
	}
	work.Go(func() {
		for ctx.Err() == nil {
			p.read()
		}
	})
	before := c.Stats().Changes
	testenv.Eventually(p, "changes arrive", func() bool { return c.Stats().Changes > before+100 })
	time.Sleep(rand.N(500 * time.Millisecond))
	p.failover()
	testenv.Eventually(p, "changes of the new primary arrive", func() bool { return c.Stats().Changes > before+200 })
	stop()
	work.Wait()
	p.want(c, lost)
}
