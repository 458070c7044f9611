package bloom

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A server that restarts may have lost what it had acknowledged, or a part of that, and so may a
// replica that has taken its place. Nothing in the segments says so: their headers are there. But
// each run of a server has an id of its own, which INFO tells. Those that a generation was begun on
// are noted before anything is added to it; if another serves now, it is not to be trusted.

// servers are the ids of the runs of all masters, or none, if one of them does not tell.
func (f *Redis) servers(ctx context.Context) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(f.allTries(), time.Second))
	defer cancel()
	var told []string
	failed := conn.NotReturned(nil)
	if err := f.home.Await(ctx, func(ctx context.Context) { told, failed = f.infos(ctx) }); err != nil {
		return nil, err
	}
	if failed != nil && !conn.IsReply(failed) { // a server that refuses INFO, or knows none of this, tells nothing
		return nil, failed
	}
	for _, info := range told {
		id := runID(info)
		if id == "" || failed != nil {
			return nil, nil
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (f *Redis) infos(ctx context.Context) (told []string, err error) {
	ask := func(ctx context.Context, c redis.UniversalClient) (info string, err error) {
		cmd := redis.NewStringCmd(ctx, "info", "server")
		conn.Do(ctx, c, cmd)
		return cmd.Result()
	}
	cluster, ok := f.rdb.(*redis.ClusterClient)
	if !ok {
		info, err := ask(ctx, f.rdb)
		return []string{info}, err
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		info, err := ask(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		told = append(told, info)
		return err
	})
	return told, err
}

// runID is in a line of INFO.
func runID(info string) string {
	_, id, _ := strings.Cut(info, "run_id:")
	id, _, _ = strings.Cut(id, "\n")
	if id = strings.TrimSpace(id); len(id) > 64 || strings.Contains(id, " ") {
		return ""
	}
	return id
}

// restarted reports whether a master was not a master yet when a generation was begun. It is false if
// the ids were not noted.
func (f *Redis) restarted(ctx context.Context, g *generation) (bool, error) {
	noted, err := f.do(ctx, "hget", f.notes, "servers:"+g.ID).Text()
	if err != nil {
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return false, err
	}
	now, err := f.servers(ctx)
	before := strings.Fields(noted)
	return slices.ContainsFunc(now, func(id string) bool { return !slices.Contains(before, id) }), err
}
