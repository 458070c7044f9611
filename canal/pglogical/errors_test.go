package pglogical

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cacheaside/cacheaside/canal"
)

// An error of a query says nothing about the slot, even if it has the code of one that does.
func TestErrorsOfQueries(t *testing.T) {
	x := shared(t)
	s := x.source()
	conn, err := s.connect(t.Context())
	x.Check(err)
	defer closeNow(conn)
	x.Do("CREATE SEQUENCE n")
	for statement, code := range map[string]string{"SELECT currval('n')": codeObjectNotInState,
		"ALTER ROLE nobody_has_this_name SUPERUSER": codeUndefined} {
		_, err = (&session{timeout: time.Minute, conn: conn}).ask(t.Context(), statement)
		if codeOf(err) != code {
			t.Fatalf("%s: %v", statement, err)
		}
		if got := s.explainReplication(err); errors.Is(got, canal.ErrPositionLost) || errors.Is(got, canal.ErrSetup) {
			t.Errorf("%s: %v", statement, got)
		}
		if got := s.explainReplication(&pgconn.PgError{Code: code}); !errors.Is(got, canal.ErrPositionLost) &&
			!errors.Is(got, canal.ErrSetup) {
			t.Errorf("%s on the replication connection: %v", statement, got)
		}
	}
}
