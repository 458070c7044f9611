//go:build accept

package meter

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestCostOfAMeter measures what a meter costs at 1,000 writes a second and the default share: CPU
// time of the process, which contains writer, readers and meter, and commands of Redis.
func TestCostOfAMeter(t *testing.T) {
	server := testenv.SharedRedis(t)
	blocks, writes, unit := 2, 300, 250*time.Millisecond
	if testenv.Accepting {
		blocks, writes, unit = 8, 5_000, time.Second
	}
	d := newRows()
	const hot = 2_000
	for i := range hot {
		d.write(i, "value")
	}
	rdb := server.Client(t)
	writer := join(t, rdb, d, patient).hear(t)
	reader := join(t, server.Client(t), d, patient).hear(t)
	var with, without cost
	for range blocks {
		without.add(costOf(t, rdb, writer, reader, writes))
		// Nearly all checks of a block's writes run within the block.
		m, err := New(writer.cache, &Options{After: []time.Duration{unit, 2 * unit, 3 * unit}})
		if err != nil {
			t.Fatal(err)
		}
		with.add(costOf(t, rdb, writer, reader, writes))
		m.Close()
		if s := m.Stats(); s.Writes < int64(writes) || s.Questions == 0 {
			t.Errorf("%+v", s)
		}
	}
	n := float64(blocks * writes)
	t.Logf("| meter | writes | CPU us/write | Redis commands/write | rows loaded/write |")
	t.Logf("| without | %d at 1,000/s | %.1f | %.3f | %.3f |", blocks*writes, without.cpu/n, without.commands/n,
		without.loads/n)
	t.Logf("| share 0.01, 3 checks | %d at 1,000/s | %.1f | %.3f | %.3f |", blocks*writes, with.cpu/n, with.commands/n,
		with.loads/n)
	if more := (with.commands - without.commands) / n; testenv.Accepting && more > 0.2 {
		t.Errorf("a meter adds %.2f commands to each write", more)
	}
}

type cost struct{ cpu, commands, loads float64 } // cpu in microseconds

func (c *cost) add(o cost) {
	c.cpu, c.commands, c.loads = c.cpu+o.cpu, c.commands+o.commands, c.loads+o.loads
}

func costOf(t *testing.T, rdb *redis.Client, writer, reader member, writes int) cost {
	began, before := time.Now(), costNow(t, rdb, writer, reader)
	for i := range writes {
		if ahead := time.Duration(i)*time.Millisecond - time.Since(began); ahead > 2*time.Millisecond {
			time.Sleep(ahead)
		}
		key := i * 7919 % 2_000
		if err := writer.Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		reader.Get(t.Context(), key)
	}
	now := costNow(t, rdb, writer, reader)
	return cost{now.cpu - before.cpu, now.commands - before.commands, now.loads - before.loads}
}
