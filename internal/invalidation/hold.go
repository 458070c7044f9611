package invalidation

import (
	"cmp"
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// A key is on hold while a second key (keys.Hold) exists in the same slot. That key is a sorted
// set of the holders, each with the end of its hold in Unix milliseconds of Redis' clock. The set
// expires with the last hold. So readers only check whether it exists, and releasing one hold
// does not end another. Package lease grants no lease of a key on hold.
//
// Each script accesses only the set, under its own name. So it can run while a cluster migrates
// the slot, when the key and the hold may be on different servers. The hold and the change of the
// key need not be atomic if the change comes second: the change removes leases from before the
// hold, and Redis grants none while the hold lasts.
//
// A writer that has not released its hold stays in the set after its hold has expired, until the
// next writer comes or the set expires. It may have been killed after it had written, and another
// writer that held the key at the same time must not conclude that it was alone.

// Lag makes each delete put its key on hold for lag, in whole milliseconds. It must be called
// before the bus is used.
func (b *Bus) Lag(lag time.Duration) { b.lag = lag }

// Hold puts keys on hold for life, under a token that is used only once. Then it changes them by
// mark, which voids loads in progress, and announces them as Delete does. Hold returns an error per
// key, nil if Redis has acknowledged everything. The commands are sent only once. If a reply is
// lost, Redis may execute its command later, so the caller must not use the token again.
func (b *Bus) Hold(
	ctx context.Context, names []string, hashes []uint64, token string, life time.Duration, mark Change,
) []error {
	errs, _ := b.do(ctx, names, hashes, job{holder: token, hold: life, change: mark, once: true})
	return errs
}

// Release is like Delete, and then releases the holds of keys under these tokens. If the holds
// ended earlier, another holder might conclude that it is alone, and store an older value.
// Release also reports for each key whether its hold was released.
func (b *Bus) Release(
	ctx context.Context, names []string, hashes []uint64, tokens []string,
) (errs []error, released []bool) {
	errs, parts := b.do(ctx, names, hashes, job{holder: lagHolder, hold: b.lag, change: del, tokens: tokens})
	released = make([]bool, len(names))
	for _, p := range parts {
		for i, cmd := range p.releases {
			released[p.positions[i]] = cmd.Err() == nil
		}
	}
	return errs, released
}

// Renew extends the holds of keys under these tokens by another life, and their marks by keep, in
// one trip. held reports for each key whether the key has been on hold all the time. errs has an
// error for each key for which that is unknown.
func (b *Bus) Renew(
	ctx context.Context, names, tokens []string, life time.Duration,
	keep func(ctx context.Context, name, token string) redis.Cmder,
) (held []bool, errs []error) {
	n := len(names)
	cmds := holdCommands(ctx, renewScript, names, b.conn.Cluster(),
		func(i int) []any { return []any{tokens[i], life.Milliseconds()} })
	for i, name := range names {
		cmds = append(cmds, keep(ctx, name, tokens[i]))
	}
	bound, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	sent := b.conn.Ask(ctx, bound, cmds)
	held, errs = make([]bool, n), make([]error, n)
	for i := range names {
		if errs[i] = cmp.Or(sent.Err(i), sent.Err(n+i)); errs[i] != nil {
			continue // its commands must not be read
		}
		if errs[i] = cmp.Or(cmds[i].Err(), cmds[n+i].Err()); errs[i] == nil {
			held[i] = cmds[i].(*redis.Cmd).Val() == int64(1)
		}
	}
	return held, errs
}
