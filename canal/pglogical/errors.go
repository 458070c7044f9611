package pglogical

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cacheaside/cacheaside/canal"
)

// Error codes of the server: https://www.postgresql.org/docs/current/errcodes-appendix.html.
const (
	codeObjectNotInState = "55000"
	codeObjectInUse      = "55006"
	codePrivilege        = "42501"
	codeUndefined        = "42704"
	codeLimit            = "53400" // configuration_limit_exceeded
	codeConnections      = "53300"
	codeNoDatabase       = "3D000"
	codeProtocol         = "08P01" // protocol_violation: PgBouncer refuses a parameter with it
)

// setup returns an error that Is canal.ErrSetup.
func setup(format string, args ...any) error {
	return fmt.Errorf("%w: %w", canal.ErrSetup, fmt.Errorf(format, args...))
}

// lost returns an error that Is canal.ErrPositionLost.
func lost(format string, args ...any) error {
	return fmt.Errorf("%w: %w", canal.ErrPositionLost, fmt.Errorf(format, args...))
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// explain returns the error that a Consumer expects for an error of the server.
func (s *Source) explain(err error) error {
	if err == nil || errors.Is(err, canal.ErrSetup) || errors.Is(err, canal.ErrPositionLost) {
		return err
	}
	switch code := codeOf(err); {
	case code == codePrivilege, code == codeNoDatabase:
		return setup("%w", err)
	case code == codeProtocol && !s.connected.Load():
		return setup("the address leads to a proxy such as PgBouncer: Options.ConnString must name the server "+
			"itself: %w", err)
	case code != "" && code[:2] == "28" && !s.connected.Load():
		// the password is wrong, or pg_hba.conf rejects the user
		return setup("%w", err)
	}
	return err
}

// explainReplication is like explain, for an error of the replication connection. The server may
// refuse this connection to a user that it accepts on other connections. The same error code has
// another cause if a query returns it.
func (s *Source) explainReplication(err error) error {
	if _, query := errors.AsType[*queryError](err); query {
		return s.explain(err)
	}
	o := &s.options
	switch codeOf(err) {
	case codePrivilege:
		user := pgx.Identifier{s.config.User}.Sanitize()
		return setup("the user %q needs the attribute REPLICATION: ALTER ROLE %s REPLICATION; on Amazon RDS GRANT "+
			"rds_replication TO %s: %w", s.config.User, user, user, err)
	case codeConnections:
		return fmt.Errorf("the server accepts no further replication connection: raise max_wal_senders or "+
			"max_connections: %w", err)
	case codeLimit:
		return setup("the server has no room for the slot %s: raise max_replication_slots, or drop a slot that is "+
			"not used: %w", o.Slot, err)
	case codeObjectInUse:
		return fmt.Errorf("another process reads the slot %s; if it has died, the server releases the slot after "+
			"Options.Timeout of that process: %w", o.Slot, err)
	case codeObjectNotInState:
		return lost("the slot %s: %w", o.Slot, err)
	case codeUndefined:
		if s.resumed.Load() {
			// the slot belongs to this Source: the next Run creates it again, when there is a
			// publication
			s.unreadable.Store(true)
			return fmt.Errorf("the publication %s was dropped, or created again: %w", o.Publication, err)
		}
		return setup("the slot %s is older than the publication %s, so that its changes cannot be read: SELECT "+
			"pg_drop_replication_slot('%s'), and the Source creates it again: %w", o.Slot, o.Publication, o.Slot, err)
	}
	return s.explain(err)
}
