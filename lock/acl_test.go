package lock_test

import (
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// TestNeedsNoMoreThanDocumented runs with a Redis user that has exactly the documented rights.
func TestNeedsNoMoreThanDocumented(t *testing.T) {
	r := testenv.SharedRedis(t)
	rules := "+eval +evalsha +get +set +time +publish +subscribe +unsubscribe +ping ~lock:* &lock:*"
	locktest.Exercise(t, locktest.Closed(t)(lock.NewRedis(locktest.Limited(t, r, rules), locktest.Patient())),
		locktest.Closed(t)(lock.NewRedis(locktest.Limited(t, r, rules), locktest.Patient())))
}
