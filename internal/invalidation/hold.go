package invalidation

import (
	"cmp"
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// A key is on hold while there is a second one beside it (keys.Hold): a sorted set of those who
// hold it, each with the end of its hold, Unix milliseconds by Redis' clock, and itself with the
// last of them as its end of life. So readers need only ask whether it is there, and no hold is
// ended by another's end. Package lease gives no lease of the key meanwhile.
//
// Each script touches the set alone, by its own name, so that it can be carried out while a cluster
// moves the slot, which may be half done: the key here, the hold there. A hold need not be one with
// the change of the key, if that comes behind it: a lease from before the hold is voided by the
// change, and after the hold none is given.
//
// A writer that has not left, though its hold is over, stays in the set until the next writer
// comes, or the set ends: it may have been killed when it had written, and another that held the
// key at the same time must not take itself for the only one.

// Lag has each delete put its key on hold for so long: whole milliseconds. It is called before all
// else, if at all.
func (b *Bus) Lag(lag time.Duration) { b.lag = lag }

// Hold puts keys on hold under a token that is used for nothing else, for life; then it changes
// them by mark, which voids what is under way, and announces them as Delete does. It returns an
// error for each key, nil where Redis has acknowledged all. It is sent once: what was not answered
// may come about later, and its token must not be used again.
func (b *Bus) Hold(ctx context.Context, names []string, hashes []uint64, token string, life time.Duration, mark Change) []error {
	errs, _ := b.do(ctx, names, hashes, job{holder: token, hold: life, change: mark, once: true})
	return errs
}

// Release is Delete, after which the holds of keys under these tokens end: before, another holder
// might take itself for the only one, and store an older value. It also returns whose hold has
// ended.
func (b *Bus) Release(ctx context.Context, names []string, hashes []uint64, tokens []string) (errs []error, left []bool) {
	errs, parts := b.do(ctx, names, hashes, job{holder: lagHolder, hold: b.lag, change: del, leaves: tokens})
	left = make([]bool, len(names))
	for _, p := range parts {
		for i, cmd := range p.left {
			left[p.at[i]] = cmd.Err() == nil
		}
	}
	return errs, left
}

// Renew keeps keys on hold under these tokens for another life, and their marks by keep; in one
// trip. It returns for each key whether it has been on hold all the time, or an error.
func (b *Bus) Renew(ctx context.Context, names, tokens []string, life time.Duration, keep func(ctx context.Context, name, token string) redis.Cmder) (held []bool, errs []error) {
	n := len(names)
	cmds := onHolds(ctx, renewScript, names, b.conn.Cluster(), func(i int) []any { return []any{tokens[i], life.Milliseconds()} })
	for i, name := range names {
		cmds = append(cmds, keep(ctx, name, tokens[i]))
	}
	bound, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	sent := b.conn.Ask(ctx, bound, cmds)
	held, errs = make([]bool, n), make([]error, n)
	for i := range names {
		if errs[i] = cmp.Or(sent.Err(i), sent.Err(n+i)); errs[i] != nil {
			continue // then they may not be read
		}
		if errs[i] = cmp.Or(cmds[i].Err(), cmds[n+i].Err()); errs[i] == nil {
			held[i] = cmds[i].(*redis.Cmd).Val() == int64(1)
		}
	}
	return held, errs
}
