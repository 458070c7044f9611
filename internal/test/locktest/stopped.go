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

// childName is what Child is registered as.
const childName = "lock worker"

// Child registers the process that Faults.Stopped asks for, in an init function of the package's
// tests. locker makes its Locker of the environment.
func Child(locker func(*lock.LockerOptions) (*lock.Locker, error)) {
	testenv.RegisterChild(childName, func() {
		ttl, err := time.ParseDuration(os.Getenv("LOCK_TTL"))
		seed, err2 := strconv.ParseUint(os.Getenv("LOCK_SEED"), 10, 64)
		l, err3 := locker(&lock.LockerOptions{TTL: ttl, Timeout: ttl / 4})
		for _, err := range []error{err, err2, err3} {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		go func() { // until the test has seen enough
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		out := json.NewEncoder(os.Stdout)
		Work(ctx, l, ttl, seed, func(e Event) { out.Encode(e) })
		l.Close()
	})
}

// stopped runs two such processes, stops and resumes them, and reads what they have done.
func (f Faults) stopped(ctx context.Context, t *testing.T, seed uint64, emit func(Event)) {
	var all sync.WaitGroup
	for i := range uint64(2) {
		env := append([]string{"LOCK_TTL=" + f.TTL.String(), fmt.Sprint("LOCK_SEED=", seed*100+90+i)}, f.Stopped...)
		c := testenv.SpawnChild(t, childName, env...)
		r := rand.New(rand.NewPCG(seed, 4+i))
		all.Go(func() {
			for ctx.Err() == nil {
				Sleep(ctx, UpTo(r, 2*f.TTL))
				c.Pause()
				Sleep(ctx, UpTo(r, 3*f.TTL))
				c.Resume()
			}
			c.Stdin.Close() //nolint:errcheck // it may have ended
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
				e.Margin, e.Timed = 0, false // its clock stood still
				emit(e)
			}
		})
	}
	all.Wait()
}
