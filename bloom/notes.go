package bloom

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Rebuilds leave notes for each other. Those of a generation are in a hash of its own, f.notes, for
// each Add is answered all of the tally: field:id is
//
//	servers  what it was begun on; see Redis.servers
//	deleted  how many rows had been, when it was begun
//	took     how long it took to build, in milliseconds
//	listed   some keys of its source, in JSON and base64, by which loaders judge it
//	is       what the descriptor says of it, for a caller that finds it lost: its segments are to
//	         be removed
var noteFields = []string{"servers:", "deleted:", "took:", noteListed, noteIs}

const noteListed, noteIs = "listed:", "is:"

// saveScript counts bits, ARGV[2], and notes fields and values, ARGV from the third on, of a
// generation, ARGV[1], unless the descriptor names it no more.
const saveScript = `
if not string.find(redis.call('GET', KEYS[1]) or '', ARGV[1], 1, true) then return 0 end
if tonumber(ARGV[2]) > 0 then redis.call('HINCRBY', KEYS[2], 'bits:' .. ARGV[1], ARGV[2]) end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[i] .. ARGV[1], ARGV[i + 1]) end
return 1`

// note notes something of a generation, and counts bits. It fails with errReplaced if the
// descriptor does not name the generation any more.
func (f *Redis) note(ctx context.Context, g *generation, set uint64, fields ...any) error {
	args := []any{"eval", saveScript, 3, f.key, f.tally, f.notes, g.ID, strconv.FormatUint(set, 10)}
	done, err := f.do(ctx, append(args, fields...)...).Int()
	if err == nil && done == 0 {
		err = errReplaced
	}
	return err
}

// remember notes what a generation begins with, before anything is added to it.
func (f *Redis) remember(ctx context.Context, g *generation, deleted uint64) error {
	is, err := json.Marshal(g)
	if err != nil {
		return err
	}
	fields := []any{noteIs, string(is), "deleted:", strconv.FormatUint(deleted, 10)}
	servers, err := f.servers(ctx)
	if err != nil {
		return err
	}
	if len(servers) > 0 {
		fields = append(fields, "servers:", strings.Join(servers, " "))
	}
	return f.note(ctx, g, 0, fields...)
}

// stray are generations that were noted, and that the descriptor does not name: it was lost since.
// If they cannot be read, they wait for the next rebuild.
func (f *Redis) stray(ctx context.Context, d *descriptor) (stray []generation) {
	ctx, cancel := context.WithTimeout(ctx, f.allTries())
	defer cancel()
	cmd := redis.NewMapStringStringCmd(ctx, "hgetall", f.notes)
	if f.home.Send(ctx, []redis.Cmder{cmd}) != nil {
		return nil
	}
	for field, is := range cmd.Val() {
		id, ok := strings.CutPrefix(field, noteIs)
		var g generation
		if !ok || json.Unmarshal([]byte(is), &g) != nil || g.ID != id || g.check() != nil || len(d.Old)+len(stray) >= maxOld-2 {
			continue
		}
		if !slices.ContainsFunc(d.all(), func(named *generation) bool { return named.ID == id }) {
			stray = append(stray, g)
		}
	}
	return stray
}

// notesOf returns the notes of a generation, by field.
func (f *Redis) notesOf(ctx context.Context, g *generation) (tally, error) {
	values, err := f.do(ctx, append([]any{"hmget", f.notes}, noted(g)...)...).Slice()
	if err != nil {
		return nil, err
	}
	notes := make(tally)
	for i, field := range noteFields[:min(len(noteFields), len(values))] {
		notes[field], _ = values[i].(string)
	}
	return notes, nil
}

// noted returns the fields of the notes of a generation.
func noted(g *generation) (fields []any) {
	for _, field := range noteFields {
		fields = append(fields, field+g.ID)
	}
	return fields
}

// forgetNotes deletes the notes and the count of a generation that is gone.
func (f *Redis) forgetNotes(ctx context.Context, g *generation) error {
	return cmp.Or(
		f.do(ctx, append([]any{"hdel", f.notes}, noted(g)...)...).Err(),
		f.do(ctx, "hdel", f.tally, "bits:"+g.ID).Err())
}

// discount subtracts deleted rows, which a generation that was begun later does not hold. An error
// is ignored: the count is for a schedule only.
func (f *Redis) discount(ctx context.Context, rows uint64) {
	if rows > 0 {
		f.do(ctx, "hincrby", f.tally, "deleted", "-"+strconv.FormatUint(rows, 10))
	}
}

// send fails if one of the commands does.
func send(ctx context.Context, to *conn.Conn, cmds []redis.Cmder) error {
	if err := to.Send(ctx, cmds); err != nil {
		return err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			return err
		}
	}
	return nil
}

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

// restarted reports whether a master was not a master yet when a generation was begun. It is false
// if the ids were not noted.
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
