// Package ddl tells what a statement in the binary log of MySQL or MariaDB does to tables.
//
// With row-based logging changes of rows are logged as rows, and only DDL and transaction control
// as statements: https://dev.mysql.com/doc/refman/8.4/en/binary-log-setting.html. So a statement is
// read as far as it takes to see which tables it makes, drops, renames, empties or exchanges. A
// statement that is not understood may have changed anything.
package ddl

import "github.com/cacheaside/cacheaside/canal/event"

// Control is what a statement does to its transaction.
type Control uint8

const (
	// None is nothing.
	None Control = iota
	// Begin is BEGIN or START TRANSACTION.
	Begin
	// Commit is COMMIT.
	Commit
	// Rollback is ROLLBACK, but not to a savepoint.
	Rollback
	// XA is XA START, END or PREPARE: nothing of it is committed yet.
	XA
	// XACommit is XA COMMIT.
	XACommit
	// XARollback is XA ROLLBACK.
	XARollback
)

// Effect is what a statement does.
type Effect struct {
	// Control is what it does to its transaction.
	Control Control

	// XID names the transaction of XA, XACommit and XARollback. It has the statement's spelling.
	// Both servers log each statement of a transaction with the same one:
	// X'gtrid',X'bqual',formatID.
	XID string

	// Changes have a Kind (Alter, Truncate or Replace), a Schema and a Table alone. Where the
	// statement names no schema and its session had none, they are of all tables.
	Changes []event.Change

	// Unknown: it was not understood, or it changes rows by itself. Changes is one Replace of all
	// tables then.
	Unknown bool
}

// maxChanges is how many Changes are told one by one; a statement with more of them is Unknown.
const maxChanges = 4096

// Read returns the effect of a statement. schema is the default one of its session, "" if it had
// none.
//
// The statement is in UTF-8. Names are as it spells them: with lower_case_table_names=1 or 2 the
// server's are in lower case where it matters.
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
