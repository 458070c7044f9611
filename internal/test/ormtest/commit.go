package ormtest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// cancelRequest is the beginning of PostgreSQL's CancelRequest, which pgx sends when a connection
// fails. It may come before the COMMIT has ended.
var cancelRequest = []byte{0, 0, 0, 16, 4, 210, 22, 46}

// LoseCommitReplies returns connections to d on which the replies to COMMITs are lost.
func LoseCommitReplies(t *testing.T, d *testenv.Database) *sqlx.DB {
	t.Helper()
	proxy := testenv.NewProxy(t, d.Addr)
	proxy.OnRequest(func(chunk []byte) testenv.Action {
		switch {
		case bytes.HasPrefix(chunk, cancelRequest):
			return testenv.Drop
		case bytes.Contains(bytes.ToUpper(chunk), []byte("COMMIT")):
			return testenv.LoseReply
		}
		return testenv.Pass
	})
	db, err := testenv.OpenDSN(strings.Replace(d.DSN(t), d.Addr, proxy.Addr, 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
