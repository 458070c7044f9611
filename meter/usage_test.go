//go:build accept && unix

package meter

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

func costNow(t *testing.T, rdb *redis.Client, members ...member) (c cost) {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	c.cpu = float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
	info, err := rdb.InfoMap(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(info["Stats"]["total_commands_processed"], &c.commands); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		c.loads += float64(m.Stats().Loads)
	}
	return c
}
