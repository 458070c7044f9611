package pglock_test

import (
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
)

func init() { rowtest.Children(kind) }

func TestLostReply(t *testing.T)              { runParallel(t, rowtest.LostReply) }
func TestSlowLockReply(t *testing.T)          { runParallel(t, rowtest.SlowAnswer) }
func TestLostReplyOfRelease(t *testing.T)     { runParallel(t, rowtest.LostReplyOfRelease) }
func TestCancelledLeavesNothing(t *testing.T) { runParallel(t, rowtest.CancelledLeavesNothing) }
func TestLateRequest(t *testing.T)            { runParallel(t, rowtest.LateRequest) }
func TestHungServer(t *testing.T)             { run(t, rowtest.HungServer) }
func TestRestart(t *testing.T)                { run(t, rowtest.Restart) }
func TestKilledConnection(t *testing.T)       { runParallel(t, rowtest.KilledConnection) }
func TestHolderKilled(t *testing.T)           { runParallel(t, rowtest.HolderKilled) }
func TestHolderStopped(t *testing.T)          { runParallel(t, rowtest.HolderStopped) }
func TestHistory(t *testing.T)                { run(t, rowtest.History) }
func TestHistoryOfKinds(t *testing.T)         { run(t, rowtest.HistoryOfKinds) }
