package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// Processes hand the tokens of their invalidations to each other. That takes less time than an
// announcement, and no fault disturbs it. The receiver reads with a token at once, and with some of
// the last tokens later.

// handedOn is the token of an invalidation.
type handedOn struct {
	Key     uint32
	Version int64 // was written before the invalidation, which outdates all older versions
	Acked   int64 // when the invalidation had returned nil
	Token   cacheaside.Token
}

// keptTokens is the number of tokens that a process keeps for later.
const keptTokens = 256

// tokens are those that a process receives.
type tokens struct {
	socket *net.UnixConn

	mu   sync.Mutex
	kept []handedOn
}

// socketOf returns the address of the process in a place of the fleet.
func (c *config) socketOf(place int) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixgram", Name: filepath.Join(c.Sockets, fmt.Sprint(place))}
}

// sockets returns a folder for the sockets of a run. The path of a socket must be short.
func sockets(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tokens") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (c *config) listenForTokens() (*tokens, error) {
	addr := c.socketOf(c.Place)
	os.Remove(addr.Name) // of a process that was killed
	socket, err := net.ListenUnixgram("unixgram", addr)
	return &tokens{socket: socket}, err
}

// handOn sends a token to a random other process. A process that is suspended or gone gets none.
func (w *worker) handOn(h handedOn, r *rand.Rand) {
	if h.Token == "" {
		panic("an invalidation has no token")
	}
	to := (w.Place + 1 + r.IntN(processes-1)) % processes
	b, err := json.Marshal(h)
	if err != nil {
		panic(err)
	}
	_ = w.tokens.socket.SetWriteDeadline(time.Now().Add(time.Millisecond))
	_, _ = w.tokens.socket.WriteToUnix(b, w.socketOf(to))
}

// receiveTokens reads with each token that arrives, until the socket is closed.
func (w *worker) receiveTokens(r *rand.Rand) {
	b := make([]byte, 64<<10)
	for {
		n, _, err := w.tokens.socket.ReadFromUnix(b)
		if err != nil {
			return
		}
		var h handedOn
		if err := json.Unmarshal(b[:n], &h); err != nil {
			panic(err)
		}
		w.after(history.Op{Goroutine: workerGoroutines}, h, r)
		w.tokens.keep(h, r)
	}
}

// keep keeps a token instead of a random one.
func (k *tokens) keep(h handedOn, r *rand.Rand) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.kept) < keptTokens {
		k.kept = append(k.kept, h)
	} else {
		k.kept[r.IntN(keptTokens)] = h
	}
}

// some returns a random one of the kept tokens.
func (k *tokens) some(r *rand.Rand) (h handedOn, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.kept) == 0 {
		return h, false
	}
	return k.kept[r.IntN(len(k.kept))], true
}

// after reads a key with a token of its invalidation.
func (w *worker) after(op history.Op, h handedOn, r *rand.Rand) {
	limit := timeout(r)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	op.Kind, op.Key, op.Timeout = history.After, h.Key, uint32(limit.Microseconds())
	op.Least, op.Acked = h.Version, h.Acked
	op.Start = history.Now()
	var got row
	var err error
	if r.IntN(4) == 0 {
		op.Flags |= history.Many
		var found map[int]row
		found, err = w.loader.GetMany(ctx, []int{int(op.Key)}, cacheaside.After(h.Token))
		got = found[int(op.Key)]
	} else {
		got, err = w.loader.Get(ctx, int(op.Key), cacheaside.After(h.Token))
	}
	op.End = history.Now()
	w.record.Record(w.saw(op, got, err))
}
