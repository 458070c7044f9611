package testenv

import (
	"os"
	"testing"
	"time"
)

// Hang is how long a test waits for an event before it reports a hang. Even a busy machine takes
// less. It is shorter for tests that run without one of the guards of package mutant, because
// there some events never happen.
var Hang = hang()

func hang() time.Duration {
	if os.Getenv("CACHEASIDE_MUTANT") != "" {
		return 15 * time.Second
	}
	return time.Minute
}

// Eventually calls done every millisecond until it returns true. After Hang it ends the test with
// a message that names what did not happen.
func Eventually(t testing.TB, event string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(began) > Hang {
			t.Fatal("hung, waited for: " + event)
		}
	}
}

// Receive waits for a value from c, or for c to be closed. After Hang it ends the test with a
// message that names what did not happen.
func Receive[T any](t testing.TB, event string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Hang):
		t.Fatal("hung, waited for: " + event)
		panic("unreachable")
	}
}
