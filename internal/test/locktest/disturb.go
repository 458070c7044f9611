package locktest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Server is one that can be stopped and resumed.
type Server interface {
	Pause()
	Resume()
}

// Disturb does, by its kind from 0 to 3, one of the things that happen to a network and to servers,
// for a random time below long, and says which. Of the requests on a bad line one in oneIn is
// delayed so that it arrives when its sender has given up, and of as many the reply is lost.
func Disturb(ctx context.Context, r *rand.Rand, kind int, p *testenv.Proxy, s Server, long time.Duration, oneIn int) string {
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

// BadLine is for Proxy.OnRequest; see Disturb.
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

// Sleep returns early when ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// UpTo is a random time below d.
func UpTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
