package lease

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// A script keeps Redis busy for several times as long as a SET of the same bytes, because it copies
// its arguments twice. So a script stores only short entries. A long one is first stored under a
// temporary key in the same slot, by SET. Then a script checks that the load still owns the lease,
// and renames that key. The script does not touch the bytes. The name of the temporary key contains
// the token, which is used once, so that no other load stores an entry under it.

// maxScriptBytes is the maximum number of bytes of the entries that one script stores.
const maxScriptBytes = 16 << 10

// temporaryLife is the life of a temporary key that is left behind, because its process was killed
// or the rename was lost.
const temporaryLife = 10 * time.Second

// errNoTemporary is the error of a rename whose temporary key is gone.
var errNoTemporary = errors.New("the temporary key of an entry is gone")

// renameScript stores an entry that is in the temporary key KEYS[2] in place of the lease or claim
// of the caller, if KEYS[1] still holds it. It deletes the temporary key otherwise. ARGV: token,
// the entry's life in ms. Returns 1 if the entry is stored, and -1 if there is no temporary key.
var renameScript = conn.NewScript(`
local h = redis.call('GETRANGE', KEYS[1], 0, 13)
local mine = string.sub(h, 3, 14) == ARGV[1]
if not mine or string.byte(h, 1) == 0xE1 and string.byte(h, 2) % 2 == 0 then
  redis.call('DEL', KEYS[2])
  return mine and 1 or 0
end
if redis.call('PEXPIRE', KEYS[2], ARGV[2]) == 0 then return -1 end
redis.call('RENAME', KEYS[2], KEYS[1])
return ` + oneOrAwaited + `
`)

// setTemporary returns the command that stores an entry under the temporary key of a token, and the
// name of that key.
func setTemporary(ctx context.Context, key string, token Token, entry []byte) (name string, set *redis.Cmd) {
	name = keys.Temporary(key, token.String())
	return name, redis.NewCmd(ctx, "set", name, entry, "px", temporaryLife.Milliseconds())
}

// fillByRename stores long entries with renameScript, in one trip. It returns the attempts for
// which Redis has refused that, and those whose replies were lost. Redis refuses it if the user may
// not use RENAME, and while a cluster moves the slot: the two keys may be on two servers.
func (s *Store) fillByRename(ctx context.Context, attempts []*Attempt) (refused, lost []*Attempt) {
	if len(attempts) == 0 {
		return nil, nil
	}
	rename := func(a *Attempt, name, body string) *redis.Cmd {
		temporary := keys.Temporary(a.key, a.token.String())
		return redis.NewCmd(ctx, name, body, 2, a.key, temporary, a.tokenArg(), a.filling.Life.Milliseconds())
	}
	failed := make([]error, len(attempts)) // the error of SET
	var unknown []*Attempt
	finish := func(a *Attempt, setErr error, v any, err error) {
		if err == nil && v == int64(-1) {
			err = errNoTemporary
			if setErr != nil {
				err = setErr
			}
		}
		switch {
		case err == nil:
			a.filling.finish(v)
		case errors.Is(err, errNoTemporary), conn.IsReply(err) && !conn.Unable(err) && !redis.IsOOMError(err):
			refused = append(refused, a)
		default:
			a.Err = err
			if !conn.IsReply(err) {
				lost = append(lost, a)
			}
		}
	}
	cmds := make([]*redis.Cmd, 0, 2*len(attempts))
	for _, a := range attempts {
		_, set := setTemporary(ctx, a.key, a.token, a.filling.entry())
		cmds = append(cmds, set, rename(a, "evalsha", renameScript.Hash))
	}
	s.send(ctx, cmds, &s.changes, func(i int, v any, err error) {
		switch a := attempts[i/2]; {
		case i%2 == 0:
			failed[i/2] = err
		case conn.IsUnknown(err, "evalsha"):
			unknown = append(unknown, a)
		default:
			finish(a, failed[i/2], v, err)
		}
	})
	if len(unknown) == 0 {
		return refused, lost
	}
	cmds = cmds[:0]
	for _, a := range unknown {
		cmds = append(cmds, rename(a, "eval", renameScript.Source))
	}
	s.send(ctx, cmds, &s.changes, func(i int, v any, err error) { finish(unknown[i], nil, v, err) })
	return refused, lost
}

// exchangeByRename is Exchange for the bytes of a long entry, in one trip. An error reply means
// that nothing was stored: see fillByRename.
func (s *Store) exchangeByRename(
	ctx context.Context, key, token string, stamp Token, entry []byte, life time.Duration,
) (stored bool, err error) {
	temporary, set := setTemporary(ctx, key, stamp, entry)
	rename := redis.NewCmd(ctx, "eval", exchangeScript.Source, 3, key, keys.Hold(key), temporary,
		appendMark(nil, token), "", life.Milliseconds(), s.lag.Milliseconds())
	s.send(ctx, []*redis.Cmd{set, rename}, &s.requests, func(i int, v any, failed error) {
		if i == 1 {
			stored, err = failed == nil && v == int64(1), failed
		}
	})
	return stored, err
}
