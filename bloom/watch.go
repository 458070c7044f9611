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

// Redis may roll back to an earlier state: a server restarts from an older snapshot, a replica
// replaces it, or an operator restores a dump or swaps two databases. Acknowledged keys are then
// lost, and the segments do not show it.
//
// So each process writes a watermark to a hash of the filter: a number that it raises with each
// of its adds, and twice a second. All adds up to a watermark were executed before it. If the
// stored watermark is lower than the last one that the process wrote, the hash, and with it the
// filter, has been rolled back. The first watermark of a process in a hash is Redis' time in
// microseconds. So if two databases are swapped and swapped back, the older hash has the lower
// number, however often the process has raised it. A process that has ended cannot compare its
// watermark. So each process also compares the run IDs of the servers (Redis.serverRuns).
//
// The field '' of the hash is an epoch. A process that detects a rollback removes the generations
// that may have lost keys and all watermarks, and raises the epoch, in one step.

const (
	watchRetry = 50 * time.Millisecond // delay after a failure; no key is refused in this time

	// watermarkTTL is the minimum time that Redis keeps the watermark of a process that has
	// ended, in seconds.
	watermarkTTL = 3600
)

// watch is the state of a process that watches Redis for lost data.
type watch struct {
	id        string // field of its watermark
	interval  time.Duration
	started   atomic.Bool
	wakeup    chan struct{}
	ctx       context.Context
	cancel    context.CancelFunc
	startStop sync.Mutex // held while the watch starts or stops
	stop      func()

	rolledBack  atomic.Bool   // a rollback was detected but not handled
	recovery    chan struct{} // semaphore: full while a goroutine handles a rollback
	suspicions  atomic.Uint64 // number of times that Redis may have lost data or been replaced
	verified    atomic.Uint64 // value of suspicions at the start of the last successful verification
	scriptKnown atomic.Bool   // the server had the lookup script in its cache

	mu     sync.Mutex
	last   watermark
	lastAt time.Time // time of the last acknowledged watermark, by the wall clock
}

func newWatch(every time.Duration) *watch {
	w := &watch{id: newID(), interval: every, wakeup: make(chan struct{}, 1), recovery: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// startWatch starts to watch Redis when the filter is first used, or is used again after its
// Replica was closed.
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
	w.started.Store(true) // before the first watermark, which would not be checked otherwise
	if !r.home.Apart(func() { defer close(done); r.runWatch(ctx) }) {
		w.started.Store(false)
		cancel()
		return
	}
	w.stop = func() { cancel(); <-done }
}

// suspend stops the watch until the filter is used again. Many programs close only the Replica.
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

// markSuspect makes all lookups return "maybe" until Redis has been verified. It is called after
// an error that may mean that Redis has restarted or been replaced.
func (w *watch) markSuspect() {
	if w.started.Load() {
		w.suspicions.Add(1)
		select {
		case w.wakeup <- struct{}{}:
		default:
		}
	}
}

// suspect reports whether Redis may have lost keys, so that no key may be refused.
func (w *watch) suspect() bool {
	return w.rolledBack.Load() || w.suspicions.Load() != w.verified.Load()
}

// verifyServer checks that Redis has lost no data of the filter. It handles a rollback, and a
// restart of a server.
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
		r.warn("a server has restarted or been replaced since the filter was built, and may have lost keys: the " +
			"filter returns \"maybe\" until it is rebuilt")
		err = r.dropSuspect(ctx, d.Active)
	}
	return err
}

// watermarkScript raises the watermark ARGV[1], and records the time. When a process writes its
// first watermark, the script removes watermarks that are more than ARGV[2] seconds old. A server
// that is out of memory rejects HSET, except in a script that has already written; PERSIST counts
// as a write. The reply is that of touchScript, with an empty descriptor.
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

// rollbackScript replaces the descriptor ARGV[1], in KEYS[1], with ARGV[2]. It deletes all
// watermarks, KEYS[2], and sets an epoch later than ARGV[3]. It returns 0 if the descriptor is
// not ARGV[1], and -1 if there already is a later epoch.
const rollbackScript = `
if tonumber(redis.call('HGET', KEYS[2], '') or 0) > tonumber(ARGV[3]) then return -1 end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
redis.call('SET', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], '', string.format('%.0f', math.max(t[1] * 1000000 + t[2], ARGV[3] + 1)))
return 1`

// writeWatermark writes the watermark of this process, and compares the reply with the last one.
func (r *Redis) writeWatermark(ctx context.Context) error {
	sent := r.watch.lastWatermark()
	reply, err := parseWatermarkReply(r.do(ctx, "eval", watermarkScript, 1, r.watermarks, r.watch.id, watermarkTTL))
	if err == nil {
		r.checkWatermark(sent, reply)
	}
	return err
}

// lastWatermark returns the last known watermark. A caller takes it before it writes the next
// one, to compare the two.
func (w *watch) lastWatermark() watermark {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// checkWatermark compares the reply to a watermark with sent, the last watermark that was known
// when it was written.
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

// outcome is the result of comparing two watermarks.
type outcome uint8

const (
	outcomeSame       outcome = iota
	outcomeHandled            // Redis was rolled back, and another process has handled it
	outcomeRolledBack         // Redis was rolled back
)

func (w *watch) compare(sent, now watermark, first bool) outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := outcomeSame
	if w.last.epoch != sent.epoch { // another reply has brought a new epoch
		if first && now.epoch > w.last.epoch {
			w.last = now
		}
		return v
	}
	switch {
	case first && sent.number == 0: // the process has written none before
	case !first && now.number > sent.number && now.number != w.last.number: // equal: written in two databases
	case first && now.epoch > sent.epoch:
		v = outcomeHandled
	case first && now.epoch == sent.epoch && time.Since(w.lastAt) > watermarkTTL/2*time.Second:
		// The watermark may have been removed because of its age.
	default:
		return outcomeRolledBack
	}
	w.lastAt = time.Now().Round(0) // wall clock only: the monotonic clock may stop while the process is suspended
	if first {
		w.last = now
		return v
	}
	w.last.number = max(w.last.number, now.number)
	return v
}

// handleRollback detects and handles a rollback of Redis before a filter is built. Otherwise the
// next watermark would detect it, and the new filter would be removed. A process that does not
// watch Redis writes no watermark, but handles a rollback that it has detected before.
func (r *Redis) handleRollback(ctx context.Context) error {
	if r.watch.started.Load() {
		if err := r.writeWatermark(ctx); err != nil {
			return err
		}
	}
	return r.discardRolledBack(ctx)
}

// discardRolledBack handles a detected rollback. It drops the generations that may have lost
// keys, and notifies all processes.
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
		changed := d.copy()
		changed.retire(changed.Active)
		changed.retire(changed.Building)
		changed.Active, changed.Building = nil, nil
		raw, err := changed.encode()
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
			r.warn("Redis was rolled back to an earlier state and has lost acknowledged writes: the filter " +
				"returns \"maybe\" until it is rebuilt")
			_ = r.bus.DeleteLoader(ctx, generationName) // if this fails, the others detect it by their watermarks
		}
		r.recheckReplica()
	}
	return nil
}

// reset makes the next watermark of the process its first.
func (w *watch) reset() {
	w.mu.Lock()
	w.last = watermark{}
	w.mu.Unlock()
	w.rolledBack.Store(false)
}

// A server that restarts may have lost some or all acknowledged writes, and so may a replica that
// replaces it. Nothing in the segments shows it: their headers are intact. But each run of a server
// has an ID, which INFO returns. The descriptor contains the IDs of the runs that served when a
// generation was begun. If another run serves now, the generation may have lost keys.

// serverRuns returns the IDs of the runs of all masters, or none if one of them does not report
// its ID.
func (r *Redis) serverRuns(ctx context.Context) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(r.longTimeout(), time.Second))
	defer cancel()
	var infos []string
	failed := conn.NotReturned(nil)
	if err := r.home.Await(ctx, func(ctx context.Context) { infos, failed = r.serverInfos(ctx) }); err != nil {
		return nil, err
	}
	if failed != nil && !conn.IsReply(failed) { // a server that rejects INFO reports no ID
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

// runID returns the run ID in the reply to INFO, or "" if there is none.
func runID(info string) string {
	_, id, _ := strings.Cut(info, "run_id:")
	id, _, _ = strings.Cut(id, "\n")
	if id = strings.TrimSpace(id); len(id) > 64 || strings.Contains(id, " ") {
		return ""
	}
	return id
}

// restarted reports whether a server has restarted or become a master since a generation was
// begun. It returns false if the IDs are not known.
func (r *Redis) restarted(ctx context.Context, g *generation) (bool, error) {
	if len(g.ServerRuns) == 0 {
		return false, nil
	}
	now, err := r.serverRuns(ctx)
	return g.runsEnded(now), err
}

// runsEnded reports whether now has the ID of a run that did not serve when g was begun. It
// returns false if the IDs of that time are not known.
func (g *generation) runsEnded(now []string) bool {
	return len(g.ServerRuns) > 0 &&
		slices.ContainsFunc(now, func(id string) bool { return !slices.Contains(g.ServerRuns, id) })
}
