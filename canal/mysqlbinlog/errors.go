package mysqlbinlog

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cacheaside/cacheaside/canal"
)

// Error codes of the servers for which go-mysql has no name.
const (
	errSlaveSameID = 4052 // MariaDB's ER_SLAVE_SAME_ID
	errBinlogReply = 1236 // ER_MASTER_FATAL_ERROR_READING_BINLOG
)

// setup returns an error that Is canal.ErrSetup.
func setup(format string, args ...any) error {
	return fmt.Errorf("%w: %w", canal.ErrSetup, fmt.Errorf(format, args...))
}

func unknownVariable(err error) bool {
	e, ok := errors.AsType[*mysql.MyError](err)
	return ok && e.Code == mysql.ER_UNKNOWN_SYSTEM_VARIABLE
}

// explainReplication is like explain, for an error of the log connection. If the server accepted
// the user on the other connection and rejects it here, the user lacks the privilege to replicate.
func (s *Source) explainReplication(err error) error {
	if e, ok := errors.AsType[*mysql.MyError](err); ok &&
		(e.Code == mysql.ER_ACCESS_DENIED_ERROR || e.Code == mysql.ER_SPECIFIC_ACCESS_DENIED_ERROR) {
		return setup("the user %q needs the privilege REPLICATION SLAVE: GRANT REPLICATION SLAVE ON *.* TO %s: %w",
			s.options.User, "'"+s.options.User+"'@'…'", e)
	}
	return s.explain(err)
}

// explain returns the error that a Consumer expects for an error of the server. It removes the
// bytes of an event that could not be parsed.
func (s *Source) explain(err error) error {
	if broken, ok := errors.AsType[*replication.EventError](err); ok {
		text, _, _ := strings.Cut(broken.Err, ", data")
		return fmt.Errorf("an event (%s) cannot be read: %.200s", broken.Header.EventType, text)
	}
	e, ok := errors.AsType[*mysql.MyError](err)
	if !ok || errors.Is(err, canal.ErrSetup) || errors.Is(err, canal.ErrPositionLost) {
		return err
	}
	same := e.Code == errSlaveSameID || e.Code == errBinlogReply && strings.Contains(e.Message, "same server_")
	switch {
	case same:
		return setup("another replica with the server id %d has connected (error %d): each Consumer that runs at the "+
			"same time needs its own Options.ServerID", s.options.ServerID, e.Code)
	case e.Code == errBinlogReply:
		return fmt.Errorf("%w: %w", canal.ErrPositionLost, e)
	case e.Code == mysql.ER_ACCESS_DENIED_ERROR && !s.connected.Load():
		return setup("%w", e)
	}
	return e
}
