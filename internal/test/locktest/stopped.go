package locktest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// childName is the name under which Child registers its function.
const childName = "lock worker"

// Child registers the function of the processes of Faults.Stopped. It must be called in an init
// function of the package's tests. locker returns a Locker for the process's environment.
func Child(locker func(*lock.Options) (*lock.Locker, error)) {
	testenv.RegisterChild(childName, func() {
		ttl, err := time.ParseDuration(os.Getenv("LOCK_TTL"))
		seed, err2 := strconv.ParseUint(os.Getenv("LOCK_SEED"), 10, 64)
		l, err3 := locker(&lock.Options{TTL: ttl, Timeout: ttl / 4})
		for _, err := range []error{err, err2, err3} {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		go func() { // the test closes the standard input to end the process
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		out := json.NewEncoder(os.Stdout)
		Work(ctx, l, Kind(os.Getenv("LOCK_KIND")), ttl, seed, func(e Event) { out.Encode(e) })
		l.Close()
	})
}

// stopped runs two processes with Child, stops and resumes them, and emits their events.
func (f Faults) stopped(ctx context.Context, t *testing.T, seed uint64, emit func(Event)) {
	var all sync.WaitGroup
	for i := range uint64(2) {
		env := append([]string{"LOCK_TTL=" + f.TTL.String(), fmt.Sprint("LOCK_SEED=", seed*100+90+i),
			"LOCK_KIND=" + string(f.Kind)}, f.Stopped...)
		c := testenv.SpawnChild(t, childName, env...)
		r := rand.New(rand.NewPCG(seed, 4+i))
		all.Go(func() {
			for ctx.Err() == nil {
				Sleep(ctx, UpTo(r, 2*f.TTL))
				c.Pause()
				Sleep(ctx, UpTo(r, 3*f.TTL))
				c.Resume()
			}
			c.Stdin.Close() // the child may have ended
		})
		all.Go(func() {
			for {
				line, err := c.ReadLine(2*atMost + testenv.Hang)
				if err != nil {
					if err := c.Wait(); err != nil {
						t.Error(err)
					}
					return
				}
				var e Event
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Errorf("%q: %v", line, err)
					continue
				}
				e.Margin, e.Timed = 0, false // timers do not fire in a stopped process
				emit(e)
			}
		})
	}
	all.Wait()
}
