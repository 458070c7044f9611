package redlock_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// TestNeedsNoMoreThanDocumented runs with a Redis user that has exactly the documented rights.
func TestNeedsNoMoreThanDocumented(t *testing.T) {
	rules := "+eval +evalsha +get +set +del +time +pttl +pexpire +publish +subscribe +unsubscribe +ping ~lock:* &lock:*"
	var a, b []*redis.Client
	for _, r := range testenv.FiveMasters(t) {
		a, b = append(a, locktest.Limited(t, r, rules)), append(b, locktest.Limited(t, r, rules))
	}
	locktest.Exercise(t, locktest.Closed(t)(redlock.New(a, locktest.Patient())),
		locktest.Closed(t)(redlock.New(b, locktest.Patient())))
}
