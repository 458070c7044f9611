package testenv

import (
	"os"
	"testing"
	"time"
)

// Hang is how long a test waits for an event before it calls it a hang. A busy machine
// never takes that long. A build of the tests that has a guard taken out does not wait as
// long, because there some events never come.
var Hang = hang()

func hang() time.Duration {
	if os.Getenv("CACHEASIDE_MUTANT") != "" {
		return 15 * time.Second
	}
	return time.Minute
}

// Eventually waits until done returns true, which it asks every millisecond. After Hang it
// fails the test and says what did not happen.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(began) > Hang {
			t.Fatal("hung, waited for: " + what)
		}
	}
}

// Receive waits for a value of c, or for c to be closed. After Hang it fails the test and
// says what did not happen.
func Receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Hang):
		t.Fatal("hung, waited for: " + what)
		panic("unreachable")
	}
}
