package mysqllock_test

import (
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// each runs a test on each engine, in a database of its own.
func each(t *testing.T, f func(t *testing.T, w rowtest.World)) {
	t.Helper()
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) { f(t, world(t, table(t, e))) })
}

// eachParallel is each for tests that do not harm the server. They begin after those that do.
func eachParallel(t *testing.T, f func(t *testing.T, w rowtest.World)) {
	t.Helper()
	t.Parallel()
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		w := world(t, table(t, e))
		t.Parallel()
		f(t, w)
	})
}

func TestLostReply(t *testing.T)              { eachParallel(t, rowtest.LostReply) }
func TestSlowLockReply(t *testing.T)          { eachParallel(t, rowtest.SlowAnswer) }
func TestLostReplyOfRelease(t *testing.T)     { eachParallel(t, rowtest.LostReplyOfRelease) }
func TestCancelledLeavesNothing(t *testing.T) { eachParallel(t, rowtest.CancelledLeavesNothing) }
func TestLateRequest(t *testing.T)            { eachParallel(t, rowtest.LateRequest) }
func TestHungServer(t *testing.T)             { each(t, rowtest.HungServer) }
func TestRestart(t *testing.T)                { each(t, rowtest.Restart) }
func TestKilledConnection(t *testing.T)       { eachParallel(t, rowtest.KilledConnection) }
func TestHolderKilled(t *testing.T)           { eachParallel(t, rowtest.HolderKilled) }
func TestHolderStopped(t *testing.T)          { eachParallel(t, rowtest.HolderStopped) }
