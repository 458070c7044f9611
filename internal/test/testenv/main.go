// Package testenv starts the servers that tests use: real ones (a single Redis, a cluster,
// sentinels, Redis with TLS, MariaDB, MySQL, PostgreSQL, ZooKeeper, NATS), embedded ones
// (miniredis), a TCP proxy that loses and delays commands, and copies of the test binary as child
// processes.
//
// Servers listen on free ports of 127.0.0.1 and store their files in one temporary folder. They
// start on first use. The Shared... functions and FiveMasters start their servers once per test
// process and empty them at each call, so tests that use them must not run in parallel with each
// other. Programs that are not tests can use RunMariaDB.
//
// When Main ends, or the test process dies of a panic or a signal, all servers are killed by
// process id and the folder is removed.
package testenv

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Leaks waits until all goroutines have ended except those that options allow. It returns an error
// that lists the others if any are left after Hang. Some end a while after their owner was closed:
// a Redis client that has met many refused connections has one that sleeps for a second.
func Leaks(options ...goleak.Option) (err error) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if err = goleak.Find(options...); err == nil || time.Since(began) > Hang {
			return err
		}
	}
}

// Main runs the tests of a package, stops all servers, fails if goroutines leaked, and exits.
// TestMain need not call anything else. The options name goroutines that are allowed to stay.
func Main(m *testing.M, ignore ...goleak.Option) {
	if name := os.Getenv(childVariable); name != "" {
		os.Exit(runChild(name))
	}
	code := m.Run()
	stopAll()
	// After a failed test, leaked goroutines are only noise.
	if code == 0 {
		if err := Leaks(ignore...); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			code = 1
		}
	}
	os.Exit(code)
}
