package lease

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// badHook does to some commands what a hook must not.
type badHook struct{ do func() }

func (badHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b badHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.Contains(cmd.String(), "bad") {
			b.do()
		}
		return next(ctx, cmd)
	}
}

func (b badHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.Contains(cmds[0].String(), "bad") {
			b.do()
		}
		return next(ctx, cmds)
	}
}

// A hook of the client that panics or calls runtime.Goexit is an error only for the reads that use
// it, also after more failures than there are trips.
func TestHookThatDoesNotReturn(t *testing.T) {
	for name, do := range map[string]func(){"panic": func() { panic("hook") }, "Goexit": runtime.Goexit} {
		for _, bounded := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				_, mini := testenv.Mini(t)
				o := *mini.Options()
				o.ContextTimeoutEnabled = bounded
				rdb := redis.NewClient(&o)
				defer rdb.Close()
				rdb.AddHook(badHook{do})
				b := newBackend(t, rdb)
				b.put("good", Entry{Codec: 4, Payload: []byte("v")}, long)
				read := func(keys ...string) (errs []error) {
					done := make(chan []error)
					for _, f := range []func(context.Context, *Sizes, []string,
						func(int, *State, error)){b.store.First, b.store.Read} {
						go func() {
							var errs []error
							defer func() { done <- errs }() // also of a goroutine that exits
							f(t.Context(), new(Sizes), keys,
								func(_ int, _ *State, err error) { errs = append(errs, err) })
						}()
						errs = append(errs, <-done...)
					}
					return errs
				}
				for range 3 * maxTrips {
					for _, keys := range [][]string{{"bad"}, {"bad", "worse"}} {
						for _, err := range read(keys...) {
							if err == nil {
								t.Error("no error")
							}
						}
					}
				}
				errs := read("good", "good")
				if len(errs) != 4 {
					t.Errorf("%d replies", len(errs))
				}
				for _, err := range errs {
					if err != nil {
						t.Error(err)
					}
				}
				b.store.conn.Close()
				if b.store.reads.one.running != 0 {
					t.Errorf("%d trips are in progress", b.store.reads.one.running)
				}
			})
		}
	}
}
