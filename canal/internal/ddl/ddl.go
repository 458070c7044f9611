// Package ddl determines how a statement in the binary log of MySQL or MariaDB affects tables.
//
// With row-based logging, changes of rows are logged as rows, and only DDL and transaction
// control as statements: https://dev.mysql.com/doc/refman/8.4/en/binary-log-setting.html. A
// statement is parsed just far enough to find the tables that it creates, drops, renames, empties
// or exchanges. A statement that is not understood may have changed anything.
package ddl

import "github.com/cacheaside/cacheaside/canal/event"

// Control is the effect of a statement on its transaction.
type Control uint8

const (
	// None is no effect.
	None Control = iota
	// Begin is BEGIN or START TRANSACTION.
	Begin
	// Commit is COMMIT.
	Commit
	// Rollback is ROLLBACK, but not to a savepoint.
	Rollback
	// XA is XA START, END or PREPARE. None of them commits.
	XA
	// XACommit is XA COMMIT.
	XACommit
	// XARollback is XA ROLLBACK.
	XARollback
)

// Effect is the effect of a statement.
type Effect struct {
	// Control is the effect on the transaction.
	Control Control

	// XID identifies the transaction of XA, XACommit and XARollback, in the spelling of the
	// statement. Both servers log all statements of a transaction with the same spelling:
	// X'gtrid',X'bqual',formatID.
	XID string

	// Changes have only a Kind (Alter, Truncate or Replace), a Schema and a Table. If neither the
	// statement nor its session names a schema, they concern the tables of any schema.
	Changes []event.Change

	// Unknown reports that the statement was not understood, or that it changes rows itself.
	// Changes is then one Replace of all tables.
	Unknown bool
}

// maxChanges is the maximum number of Changes of an Effect. A statement with more of them is
// Unknown.
const maxChanges = 4096

// Read returns the effect of a statement. schema is the default schema of its session, or "" if
// there was none.
//
// The statement is in UTF-8. Names have the spelling of the statement. With
// lower_case_table_names=1 or 2, the server uses lower case for them elsewhere.
func Read(statement, schema string) Effect {
	r := reader{lexer: lexer{text: statement}, schema: schema}
	r.next()
	for r.accept(';') || r.accept('(') {
	}
	understood := r.token.kind == end || r.statement()
	switch {
	case !understood, r.bad, len(r.effect.Changes) > maxChanges:
		return unknown()
	case r.escaped && len(r.effect.Changes) > 0:
		// With the SQL mode NO_BACKSLASH_ESCAPES strings end elsewhere, so the statement may also
		// concern other tables.
		return unknown()
	}
	return r.effect
}

func unknown() Effect {
	return Effect{Changes: []event.Change{{Kind: event.Replace}}, Unknown: true}
}
