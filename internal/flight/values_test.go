package flight

import (
	"context"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The values of a flight that has gathered are those of its first caller, until that leaves; others
// may still wait.
func TestValuesOfGatheredCallers(t *testing.T) {
	type key struct{}
	began, goOn := make(chan context.Context), make(chan struct{})
	g := New(Hooks[int, string]{
		Run: func(ctx context.Context, f *Flight[int, string]) {
			began <- ctx
			<-goOn
			f.Complete(f.Rounds)
		},
		StillValid: func(*string) bool { return false },
		Caught:     func(any) error { return nil },
	})
	defer g.Close(nil)
	ask := func(ctx context.Context, many bool) (cancel func(), done chan struct{}) {
		ctx, stop := context.WithCancel(ctx)
		done = make(chan struct{})
		go func() {
			defer close(done)
			if many {
				doMany(g, ctx, []int{1})
			} else {
				do(g, ctx, 1)
			}
		}()
		return stop, done
	}
	for _, many := range []bool{false, true} {
		end, first := ask(t.Context(), many)
		<-began
		leave, leader := ask(context.WithValue(t.Context(), key{}, "leader"), many)
		testenv.Eventually(t, "the leader", func() bool { return g.Waiting(1) == 1 })
		stop, follower := ask(context.WithValue(t.Context(), key{}, "follower"), many)
		testenv.Eventually(t, "the follower", func() bool { return g.Waiting(1) == 2 })
		goOn <- struct{}{}
		<-first
		ctx := <-began
		if got := ctx.Value(key{}); got != "leader" {
			t.Errorf("many %v: %v", many, got)
		}
		leave()
		<-leader
		if got := ctx.Value(key{}); got != nil || ctx.Err() != nil {
			t.Errorf("many %v, after the leader has left: %v, %v", many, got, ctx.Err())
		}
		goOn <- struct{}{}
		<-follower
		end()
		stop()
	}
}
