package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// StartPgBouncer starts a PgBouncer in front of p that pools transactions: each statement outside
// of a transaction may run in another session of the server. The PgBouncer is stopped when the test
// ends. StartPgBouncer returns the URL of the test's database through it.
func StartPgBouncer(t testing.TB, p *Postgres) (dsn string) {
	t.Helper()
	path := program(t, "pgbouncer", "pgbouncer")
	database := p.Database(t)
	b, err := launch(context.Background(), "pgbouncer", func(s *server) (err error) {
		if s.user, err = postgresUser(); err != nil { // it does not run as root, either
			return err
		}
		if err := openTo(s.dir, s.user); err != nil {
			return err
		}
		_, port, err := net.SplitHostPort(p.Addr)
		if err != nil {
			return err
		}
		settings := filepath.Join(s.dir, "settings.ini")
		text := strings.Join([]string{
			"[databases]",
			fmt.Sprintf("* = host=127.0.0.1 port=%s user=%s", port, p.User),
			"[pgbouncer]",
			"listen_addr = 127.0.0.1",
			"listen_port = " + strconv.Itoa(s.port),
			"unix_socket_dir =",
			"auth_type = any",
			"pool_mode = transaction",
			"default_pool_size = 3",
			"server_round_robin = 1",
		}, "\n") + "\n"
		if err := os.WriteFile(settings, []byte(text), 0o644); err != nil {
			return err
		}
		s.argv = []string{path, settings}
		s.ready = func() error {
			if log := s.logTail(); !strings.Contains(log, "process up") {
				return fmt.Errorf("the log says %q", log)
			}
			return nil
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.claim(t)
	return "postgres://" + p.User + "@" + b.addr() + "/" + database + "?sslmode=disable"
}
