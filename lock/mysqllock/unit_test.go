package mysqllock

import (
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// TestUnanswered: what leaves open whether a named lock is still held, and what does not.
func TestUnanswered(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errBusy, true},
		{&mysql.MySQLError{Number: 1317}, true}, // a statement was interrupted
		{&mysql.MySQLError{Number: killed}, false},
		{&mysql.MySQLError{Number: sessionKilled}, false},
		{&mysql.MySQLError{Number: inactive}, false},
		{mysql.ErrInvalidConn, false},
		{driver.ErrBadConn, false},
		{errors.New("reset by peer"), false},
		{nil, false},
	} {
		if got := unanswered(c.err); got != c.want {
			t.Errorf("unanswered(%v) is %v", c.err, got)
		}
	}
}
