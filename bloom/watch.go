package bloom

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Redis may go back in time: it restarts from an older snapshot, a replica takes its place, an
// operator restores a dump or swaps two databases. Keys that had been acknowledged are lost then,
// and the segments do not say so.
//
// So each process leaves a mark in a hash of the filter: a number that grows with each of its adds,
// and twice a second. All adds up to a mark have been carried out before it. If the mark is less
// than the process has left, the hash, and with it the filter, is from before. A process that has
// ended cannot compare its mark, so each also asks which run of the server it is (Redis.servers).
//
// The field '' of the hash is an epoch. A process that finds that Redis has gone back takes away
// the generations that may have lost keys, and all marks, and sets a later epoch, in one step.

const (
	watchRetry = 50 * time.Millisecond // after a failure, until when nothing is refused

	// forgetAfter is how long Redis keeps the mark of a process that is gone, at least, in seconds.
	watermarkTTL = 3600
)

// watch is what a process knows of Redis' past.
type watch struct {
	id        string // of its mark
	interval  time.Duration
	started   atomic.Bool
	wakeup    chan struct{}
	ctx       context.Context
	cancel    context.CancelFunc
	startStop sync.Mutex // held while the watch begins or ends
	stop      func()

	rolledBack  atomic.Bool   // Redis has gone back, and that was not seen to yet
	recovery    chan struct{} // full while one sees to it
	suspicions  atomic.Uint64 // times that Redis may have become another
	verified    atomic.Uint64 // of them, those since which it was compared
	scriptKnown atomic.Bool   // it has known the script of lookups

	mu     sync.Mutex
	last   watermark
	lastAt time.Time // when a mark was acknowledged last, by the wall clock
}

func newWatch(every time.Duration) *watch {
	w := &watch{id: newID(), interval: every, wakeup: make(chan struct{}, 1), recovery: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// watching begins to watch Redis when the filter is first used, or is used again after its Replica
// was closed.
func (r *Redis) startWatch() {
	w := r.watch
	if w.interval <= 0 || w.started.Load() {
		return
	}
	w.startStop.Lock()
	defer w.startStop.Unlock()
	if w.started.Load() {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan struct{})
	w.started.Store(true) // before the first mark, which else would not count
	if !r.home.Apart(func() { defer close(done); r.runWatch(ctx) }) {
		w.started.Store(false)
		cancel()
		return
	}
	w.stop = func() { cancel(); <-done }
}

// unwatched ends the watch until the filter is used again. Many programs close only the Replica.
func (w *watch) suspend() {
	w.startStop.Lock()
	defer w.startStop.Unlock()
	if w.started.Swap(false) {
		w.stop()
	}
}

func (r *Redis) runWatch(ctx context.Context) {
	w := r.watch
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wakeup:
		case <-timer.C:
		}
		seen, wait := w.suspicions.Load(), w.interval*3/4+rand.N(w.interval/4)
		if err := r.verifyServer(ctx); err != nil {
			w.suspicions.Add(1)
			wait = watchRetry
		} else {
			w.verified.Store(seen)
		}
		timer.Reset(wait)
	}
}

// troubled has nothing be refused until Redis was compared: it may have become another.
func (w *watch) markSuspect() {
	if w.started.Load() {
		w.suspicions.Add(1)
		select {
		case w.wakeup <- struct{}{}:
		default:
		}
	}
}

// unsure tells whether what Redis does not have may have been lost there.
func (w *watch) suspect() bool {
	return w.rolledBack.Load() || w.suspicions.Load() != w.verified.Load()
}

// compare looks whether Redis is what it was.
func (r *Redis) verifyServer(ctx context.Context) error {
	if err := r.discardRolledBack(ctx); err != nil {
		return err
	}
	if err := r.writeWatermark(ctx); err != nil {
		return err
	}
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	if err != nil || d.Active == nil {
		return err
	}
	restarted, err := r.restarted(ctx, d.Active)
	if err == nil && restarted {
		r.warn("a server has restarted, or taken another's place, since the filter was built: it may have lost keys, and answers \"maybe\" until it was built again")
		err = r.dropSuspect(ctx, d.Active)
	}
	return err
}

// markScript leaves the mark ARGV[1], and notes when. A mark that was left more than ARGV[2]
// seconds ago is forgotten when a new one comes. A full server refuses HSET, but not in a script
// that has already written, as PERSIST does. It returns what touchScript does, without a
// descriptor.
const watermarkScript = watermarkLua + `
redis.call('PERSIST', KEYS[1])
local now, n, epoch = tonumber(redis.call('TIME')[1]), mark(KEYS[1], ARGV[1])
if epoch ~= '' then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local id = string.match(all[i], '^at:(.+)$')
    if id and now - (tonumber(all[i + 1]) or 0) > tonumber(ARGV[2]) then redis.call('HDEL', KEYS[1], id, all[i]) end
  end
end
redis.call('HSET', KEYS[1], 'at:' .. ARGV[1], string.format('%.0f', now))
return {n, epoch, '', 0}`

// pastScript changes the descriptor KEYS[1] from ARGV[1] to ARGV[2], takes away all marks, KEYS[2],
// and sets an epoch later than ARGV[3]. It answers 0 if the descriptor is another, -1 if there is a
// later epoch already.
const rollbackScript = `
if tonumber(redis.call('HGET', KEYS[2], '') or 0) > tonumber(ARGV[3]) then return -1 end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
redis.call('SET', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], '', string.format('%.0f', math.max(t[1] * 1000000 + t[2], ARGV[3] + 1)))
return 1`

// mark leaves this process's mark, and looks at what was there.
func (r *Redis) writeWatermark(ctx context.Context) error {
	sent := r.watch.lastWatermark()
	reply, err := parseWatermarkReply(r.do(ctx, "eval", watermarkScript, 1, r.watermarks, r.watch.id, watermarkTTL))
	if err == nil {
		r.checkWatermark(sent, reply)
	}
	return err
}

// sent is what a mark is compared with: it is taken before that is left.
func (w *watch) lastWatermark() watermark {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// marked compares the reply to a mark with what was known when the mark was sent.
func (r *Redis) checkWatermark(sent watermark, reply watermarkReply) {
	if !r.watch.started.Load() {
		return
	}
	switch r.watch.compare(sent, reply.watermark, reply.first) {
	case outcomeRolledBack:
		r.watch.rolledBack.Store(true)
		r.recheckReplica()
		r.watch.markSuspect()
	case outcomeHandled:
		r.recheckReplica()
	}
}

// outcome is what follows from an answer to a mark.
type outcome uint8

const (
	outcomeSame       outcome = iota
	outcomeHandled            // Redis had gone back, and another process has seen to it
	outcomeRolledBack         // Redis has gone back
)

func (w *watch) compare(sent, now watermark, first bool) outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := outcomeSame
	if w.last.epoch != sent.epoch { // another answer has told of a new epoch
		if first && now.epoch > w.last.epoch {
			w.last = now
		}
		return v
	}
	switch {
	case now.number > sent.number:
	case first && now.epoch > sent.epoch:
		v = outcomeHandled
	case first && now.epoch == sent.epoch && time.Since(w.lastAt) > watermarkTTL/2*time.Second: // it was forgotten, or so it may be
	default:
		return outcomeRolledBack
	}
	w.lastAt = time.Now().Round(0) // a process that was suspended has not seen the time pass, but the world has
	if first {
		w.last = now
		return v
	}
	w.last.number = max(w.last.number, now.number)
	return v
}

// knowPast handles a Redis that has gone back before a filter is built: else the next mark would
// find that, and take the new filter away. A process that does not watch leaves no mark, but
// handles what it has noticed before.
func (r *Redis) handleRollback(ctx context.Context) error {
	if r.watch.started.Load() {
		if err := r.writeWatermark(ctx); err != nil {
			return err
		}
	}
	return r.discardRolledBack(ctx)
}

// leavePast sees to it if Redis has gone back: it takes away what may have lost keys, and has all
// processes know that it was.
func (r *Redis) discardRolledBack(ctx context.Context) error {
	select {
	case r.watch.recovery <- struct{}{}:
		defer func() { <-r.watch.recovery }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for r.watch.rolledBack.Load() {
		d, err := r.fetchDescriptor(ctx, r.longTimeout())
		if err != nil {
			return err
		}
		to := d.copy()
		to.retire(to.Active)
		to.retire(to.Building)
		to.Active, to.Building = nil, nil
		raw, err := to.encode()
		if err != nil {
			return err
		}
		epoch := strconv.FormatUint(r.watch.lastWatermark().epoch, 10)
		done, err := r.do(ctx, "eval", rollbackScript, 2, r.key, r.watermarks, d.raw, raw, epoch).Int()
		if err != nil {
			return err
		}
		if done == 0 {
			continue
		}
		r.watch.reset()
		if done > 0 {
			r.counts.wentBack.Add(1)
			r.warn("Redis has gone back to an earlier state, from before what it has acknowledged: the filter answers \"maybe\" until it was built again")
			_ = r.bus.DeleteLoader(ctx, generationName) // else others find it out by their marks
		}
		r.recheckReplica()
	}
	return nil
}

// restart makes the next mark the first.
func (w *watch) reset() {
	w.mu.Lock()
	w.last = watermark{}
	w.mu.Unlock()
	w.rolledBack.Store(false)
}

// A server that restarts may have lost what it had acknowledged, or a part of that, and so may a
// replica that has taken its place. Nothing in the segments says so: their headers are there. But
// each run of a server has an id, which INFO returns. The descriptor has the ids of the runs that
// served when a generation was begun. If another run serves now, the generation may have lost keys.

// servers are the ids of the runs of all masters, or none, if one of them does not tell.
func (r *Redis) serverRuns(ctx context.Context) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(r.longTimeout(), time.Second))
	defer cancel()
	var infos []string
	failed := conn.NotReturned(nil)
	if err := r.home.Await(ctx, func(ctx context.Context) { infos, failed = r.serverInfos(ctx) }); err != nil {
		return nil, err
	}
	if failed != nil && !conn.IsReply(failed) { // a server that refuses INFO, or knows none of this, tells nothing
		return nil, failed
	}
	for _, info := range infos {
		id := runID(info)
		if id == "" || failed != nil {
			return nil, nil
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (r *Redis) serverInfos(ctx context.Context) (infos []string, err error) {
	ask := func(ctx context.Context, c redis.UniversalClient) (info string, err error) {
		cmd := redis.NewStringCmd(ctx, "info", "server")
		conn.Do(ctx, c, cmd)
		return cmd.Result()
	}
	cluster, ok := r.rdb.(*redis.ClusterClient)
	if !ok {
		info, err := ask(ctx, r.rdb)
		return []string{info}, err
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		info, err := ask(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		infos = append(infos, info)
		return err
	})
	return infos, err
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
// if the ids are not known.
func (r *Redis) restarted(ctx context.Context, g *generation) (bool, error) {
	if len(g.ServerRuns) == 0 {
		return false, nil
	}
	now, err := r.serverRuns(ctx)
	return slices.ContainsFunc(now, func(id string) bool { return !slices.Contains(g.ServerRuns, id) }), err
}
