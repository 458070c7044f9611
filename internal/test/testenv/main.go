// Package testenv gives tests the servers they talk to: real ones (Redis alone,
// in a cluster, behind sentinels and with TLS, MariaDB, MySQL, ZooKeeper, NATS), embedded ones
// (miniredis), a TCP proxy that loses and delays commands, and copies of
// the test binary as child processes.
//
// Servers listen on free ports of 127.0.0.1 and keep their files in one temporary
// folder. They start on first use. Those with a Shared... function, and
// FiveMasters, are started once for the test process and emptied each time they
// are handed out, so tests that use them must not run in parallel with each other.
// Programs that are no tests can have RunMariaDB.
// Everything is killed by process id, and the folder removed, when Main ends and
// also when the test process dies of a panic or a signal.
package testenv

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Leaks waits until no goroutine is left that is not allowed to stay, and tells what is left
// after Hang. Some end a while after what they belong to was closed: a client of Redis that
// has met many refused connections has one that sleeps for a second.
func Leaks(options ...goleak.Option) (err error) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if err = goleak.Find(options...); err == nil || time.Since(began) > Hang {
			return err
		}
	}
}

// Main runs the tests of a package, stops all servers, fails if goroutines were
// left behind, and exits. It is all that TestMain has to call. The options name
// goroutines that are allowed to stay.
func Main(m *testing.M, ignore ...goleak.Option) {
	if name := os.Getenv(childVariable); name != "" {
		os.Exit(runChild(name))
	}
	code := m.Run()
	stopAll()
	// As long as tests fail, what they left behind is only noise.
	if code == 0 {
		if err := Leaks(ignore...); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			code = 1
		}
	}
	os.Exit(code)
}
