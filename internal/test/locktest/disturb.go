package locktest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A Server can be stopped and resumed.
type Server interface {
	Pause()
	Resume()
}

// Disturb causes a failure of a network or a server for a random time below long, and returns its
// name: for kind 0 a hang, for 1 reset connections, for 2 a bad line, for any other a stopped
// server. On a bad line, one request in oneIn is delayed until its sender has timed out, and one in
// oneIn loses its reply.
func Disturb(
	ctx context.Context, r *rand.Rand, kind int, p *testenv.Proxy, s Server, long time.Duration, oneIn int,
) string {
	d := UpTo(r, long)
	switch kind {
	case 0:
		p.Hang(true)
		Sleep(ctx, d)
		p.Hang(false)
		return "hang"
	case 1:
		p.Cut()
		Sleep(ctx, d/4)
		p.Restore()
		return "reset"
	case 2:
		p.OnRequest(BadLine(r.Uint64(), oneIn))
		Sleep(ctx, d)
		p.OnRequest(nil)
		return "replies lost, requests delayed"
	default:
		s.Pause()
		Sleep(ctx, d)
		s.Resume()
		return "server stopped"
	}
}

// BadLine returns a function for Proxy.OnRequest: see Disturb.
func BadLine(seed uint64, oneIn int) func([]byte) testenv.Action {
	r := rand.New(rand.NewPCG(seed, 3))
	return func([]byte) testenv.Action {
		switch r.IntN(oneIn) {
		case 0:
			return testenv.LoseReply
		case 1:
			return testenv.Delay(UpTo(r, 500*time.Millisecond))
		default:
			return testenv.Pass
		}
	}
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// UpTo returns a random duration below d.
func UpTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
