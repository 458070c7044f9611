package locktest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// childName is what Child is registered as.
const childName = "lock worker"

// Child registers the process that Faults.Stopped asks for, in an init function of the package's tests. locker makes its Locker of the environment.
func Child(locker func(*lock.LockerOptions) (*lock.Locker, error)) {
	testenv.RegisterChild(childName, func() {
		ttl, err := time.ParseDuration(os.Getenv("LOCK_TTL"))
		seed, err2 := strconv.ParseUint(os.Getenv("LOCK_SEED"), 10, 64)
		length, err3 := time.ParseDuration(os.Getenv("LOCK_LENGTH"))
		l, err4 := locker(&lock.LockerOptions{TTL: ttl, Timeout: ttl / 4})
		for _, err := range []error{err, err2, err3, err4} {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), length)
		defer cancel()
		out := json.NewEncoder(os.Stdout)
		Work(ctx, l, ttl, seed, func(e Event) { out.Encode(e) })
		l.Close()
	})
}

// stopped runs two such processes, stops and resumes them, and reads what they have done.
func (f Faults) stopped(ctx context.Context, t *testing.T, seed uint64, emit func(Event)) {
	deadline, _ := ctx.Deadline()
	var all sync.WaitGroup
	for i := range uint64(2) {
		env := append([]string{"LOCK_TTL=" + f.TTL.String(), fmt.Sprint("LOCK_SEED=", seed*100+90+i), "LOCK_LENGTH=" + time.Until(deadline).String()}, f.Stopped...)
		c := testenv.SpawnChild(t, childName, env...)
		r := rand.New(rand.NewPCG(seed, 4+i))
		all.Go(func() {
			for ctx.Err() == nil {
				Sleep(ctx, UpTo(r, 2*f.TTL))
				c.Pause()
				Sleep(ctx, UpTo(r, 3*f.TTL))
				c.Resume()
			}
		})
		all.Go(func() {
			for {
				line, err := c.ReadLine(time.Until(deadline) + patience)
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
