package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// dump returns the contents of a Redis.
func dump(w *world, rdb *redis.Client) string {
	w.Helper()
	names, err := rdb.Keys(w.Context(), "*").Result()
	w.check(err)
	slices.Sort(names)
	var all strings.Builder
	for _, name := range names {
		content, err := rdb.Dump(w.Context(), name).Result()
		w.check(err)
		fmt.Fprintf(&all, "%q %x\n", name, content)
	}
	return all.String()
}
