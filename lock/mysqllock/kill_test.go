package mysqllock_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cacheaside/cacheaside/internal/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// TestKill: whose connection was killed is told that he has lost his named lock: by Release, too, if that comes before the watchdog.
func TestKill(t *testing.T) {
	t.Parallel()
	m := testenv.SharedMariaDB(t)
	db := m.DB(t)
	for what, f := range map[string]func(*lock.Lease) error{
		"extend":  func(s *lock.Lease) error { return s.Extend(within(t, patience)) },
		"release": (*lock.Lease).Release,
	} {
		lease, err := locker(t, mysqllock.NewNamed, db, long).Acquire(within(t, patience), what, &lock.Options{NoToken: true})
		check(t, err)
		var id, others int
		check(t, db.QueryRow("SELECT CONNECTION_ID()").Scan(&others))
		check(t, db.QueryRow("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() ORDER BY id DESC LIMIT 1").Scan(&id))
		_, err = db.Exec(fmt.Sprint("KILL ", id))
		check(t, err)
		if err := f(lease); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%s, after KILL: %v", what, err)
		}
	}
}
