package pglogical

import (
	"log/slog"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestSilentWalsender stops the process that sends the log, for longer than Timeout: first while it
// decodes a large transaction of a table that is not published. The Source waits for it, and logs
// why. Then it stops the process while it has nothing to do. That ends the Source's run.
func TestSilentWalsender(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE TABLE large (id INT)")
	x.Do("CREATE PUBLICATION " + x.name + " FOR TABLE users")
	log := &testenv.Log{}
	l := x.Listen(x.source(func(o *Options) {
		o.Publication, o.Timeout, o.Logger = x.name, 2*time.Second, slog.New(slog.NewTextHandler(log, nil))
	}), x.Need([]string{"users", "id"}))
	const mine = " FROM pg_stat_activity WHERE backend_type = 'walsender' AND datname = current_database()"
	pid, err := strconv.Atoi(x.Ask("SELECT pid" + mine))
	x.Check(err)
	kill := func(s syscall.Signal) { x.Check(syscall.Kill(pid, s)) }
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	decodes := func() bool { return x.Ask("SELECT COALESCE(wait_event_type, 'none')"+mine) == "none" }
	testenv.Eventually(t, "that the process decodes", func() bool {
		x.Do("INSERT INTO large SELECT generate_series(1, 100000)")
		for range 100 {
			if !decodes() {
				time.Sleep(time.Millisecond)
				continue
			}
			if kill(syscall.SIGSTOP); decodes() {
				return true
			}
			kill(syscall.SIGCONT)
		}
		return false
	})
	testenv.Eventually(t, "the warning", func() bool { return strings.Contains(log.String(), "its process works") })
	kill(syscall.SIGCONT)
	x.Do("INSERT INTO users VALUES (1)")
	l.Want("insert users: 1")

	testenv.Eventually(t, "that the process has nothing to do", func() bool {
		if decodes() {
			return false
		}
		if kill(syscall.SIGSTOP); !decodes() {
			return true
		}
		kill(syscall.SIGCONT)
		return false
	})
	if err := l.Ended(); err == nil || !strings.Contains(err.Error(), "the server has sent nothing for") {
		t.Errorf("the process is stopped: %v", err)
	}
}
