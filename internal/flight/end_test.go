package flight

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
)

func TestRunThatDoesNotReturnReachesAllItsCallers(t *testing.T) {
	for name, c := range map[string]struct {
		run  func()
		want string
	}{
		"panic":      {func() { panic("boom") }, "caught boom"},
		"panic(nil)": {func() { panic(nil) }, "caught " + new(runtime.PanicNilError).Error()},
		"Goexit":     {runtime.Goexit, "caught <nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				goOn := make(chan bool) // whether to return
				runs := 0
				g := newSimple(func(context.Context, string) (string, error) {
					runs++
					if !<-goOn {
						c.run()
					}
					return fmt.Sprint("run ", runs), nil
				}, func(string) bool { return true }, func(recovered any) error {
					return fmt.Errorf("caught %v", recovered)
				})
				type outcome struct {
					value string
					err   error
				}
				do := func() chan outcome {
					done := make(chan outcome, 1)
					go func() {
						v, err := g.Do(t.Context(), "k")
						done <- outcome{v, err}
					}()
					synctest.Wait()
					return done
				}
				first := do()
				second, third, fourth := do(), do(), do()
				goOn <- true // and those who have gathered share it
				for _, c := range []chan outcome{first, second, third, fourth} {
					if o := <-c; o.value != "run 1" || o.err != nil {
						t.Errorf("got %+v", o)
					}
				}

				first = do()
				second, third = do(), do()
				goOn <- false
				if o := <-first; o.value != "" || o.err == nil || o.err.Error() != c.want {
					t.Errorf("got %+v, want %s", o, c.want)
				}
				synctest.Wait()
				fourth = do()
				goOn <- false // of the round of the two
				for _, waiting := range []chan outcome{second, third} {
					if o := <-waiting; o.value != "" || o.err == nil || o.err.Error() != c.want {
						t.Errorf("got %+v, want %s", o, c.want)
					}
				}
				goOn <- true
				if o := <-fourth; o.value != "run 4" || o.err != nil {
					t.Errorf("the next round gave %+v", o)
				}
				g.Close(errors.New("closed")) // does not wait for ever
			})
		})
	}
}

func TestCloseEndsAllCallersAndWaitsForTheRounds(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		cause := errors.New("closing")
		running, gathered, other := b.do("k"), b.do("k"), b.do("other")
		b.began(2)
		if b.group.Closed() {
			t.Error("closed from the start")
		}
		closed := make(chan struct{})
		go func() {
			b.group.Close(cause)
			close(closed)
		}()
		for _, c := range []*call{running, gathered, other} {
			b.got(c, "", cause)
		}
		if !b.group.Closed() {
			t.Error("not closed")
		}
		again := make(chan struct{})
		go func() {
			b.group.Close(errors.New("another cause"))
			close(again)
		}()
		for _, l := range b.all() {
			if got := context.Cause(l.ctx); got != cause {
				t.Errorf("the context of %s ended with %v", l.key, got)
			}
			synctest.Wait()
			for _, c := range []chan struct{}{closed, again} {
				select {
				case <-c:
					t.Errorf("Close did not wait for %s", l.key)
				default:
				}
			}
			b.got(b.do("k"), "", cause)
			b.got(b.do("new"), "", cause)
			l.end <- outcome{"too late", nil}
		}
		<-closed
		<-again
		b.began(2) // those who had gathered are not run
		b.got(b.do("k"), "", cause)
		b.group.Close(cause)
	})
}

func TestCloseOfAnIdleGroup(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		first := b.do("k")
		b.began(1).end <- outcome{"one", nil}
		b.got(first, "one", nil)
		cause := errors.New("closing")
		b.group.Close(cause)
		b.got(b.do("k"), "", cause)
		b.began(1)
	})
}

// A round that has been abandoned is still waited for.
func TestCloseWaitsForAnAbandonedRound(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		c := b.do("k")
		one := b.began(1)
		c.cancel()
		b.got(c, "", context.Canceled)
		closed := make(chan struct{})
		go func() {
			b.group.Close(errors.New("closing"))
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close did not wait")
		default:
		}
		if cause := context.Cause(one.ctx); cause != ErrAbandoned {
			t.Errorf("the cause is %v", cause)
		}
		one.end <- outcome{}
		<-closed
	})
}

func TestNothingIsKeptOfAKeyWithoutCallers(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		for i := range 50 {
			c := b.do(fmt.Sprint(i))
			if i%2 == 0 {
				c.cancel()
			}
			b.began(i + 1).end <- outcome{}
		}
		synctest.Wait()
		for i := range b.group.shards {
			s := &b.group.shards[i]
			s.mu.Lock()
			for key := range s.running {
				t.Errorf("%s is still there", key)
			}
			s.mu.Unlock()
		}
	})
}
