package ddl

import (
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside/canal/event"
)

// statement reads a statement from its first word. A statement that is not listed here is not
// understood, so that a statement that changes rows itself is never ignored: INSERT, UPDATE,
// DELETE, REPLACE, LOAD, CALL, DO, WITH, SELECT, EXECUTE, and those of later versions.
func (r *reader) statement() bool {
	if r.token.kind != word {
		return false
	}
	verb := upper(r.token.text)
	r.next()
	switch verb {
	case "BEGIN":
		r.effect.Control = Begin
		r.keyword("WORK")
		return r.atEnd() // otherwise it is a block of statements
	case "START":
		r.effect.Control = Begin
		return r.keyword("TRANSACTION") && r.skipRest()
	case "COMMIT":
		r.effect.Control = Commit
		return r.skipRest()
	case "ROLLBACK":
		r.keyword("WORK")
		if !r.keyword("TO") {
			r.effect.Control = Rollback
		}
		return r.skipRest()
	case "XA":
		return r.xa()
	case "CREATE":
		return r.create()
	case "ALTER":
		return r.alter()
	case "DROP":
		return r.drop()
	case "TRUNCATE":
		r.keyword("TABLE")
		return r.tables(event.Truncate)
	case "RENAME":
		return r.rename()
	case "REPAIR":
		return r.repair()
	case "SET":
		return !r.keyword("STATEMENT") && r.skipRest() // MariaDB's SET STATEMENT executes another one
	case "ANALYZE": // MariaDB's ANALYZE of a statement executes it
		r.keyword("LOCAL", "NO_WRITE_TO_BINLOG")
		return r.keyword("TABLE", "TABLES") && r.skipRest()
	case "OPTIMIZE", "CHECK", "CHECKSUM", "FLUSH", "GRANT", "REVOKE", "USE", "INSTALL", "UNINSTALL", "CHANGE", "RESET",
		"PURGE", "KILL", "SHUTDOWN",
		"LOCK", "UNLOCK", "HELP", "SHOW", "DEALLOCATE", "BACKUP", "COMMENT", "SAVEPOINT", "RELEASE":
		return r.skipRest()
	}
	return false
}

// drop reads what follows DROP.
func (r *reader) drop() bool {
	switch {
	case r.keyword("TABLE", "TABLES"):
		return r.tables(event.Alter)
	case r.keyword("DATABASE", "SCHEMA"):
		return r.database() && r.atEnd()
	}
	return r.token.kind == word && r.skipRest()
}

// database reads the name of a schema whose tables are all dropped.
func (r *reader) database() bool {
	if !r.ifExists() {
		return false
	}
	name, ok := r.name()
	r.addChange(event.Alter, table{schema: name})
	return ok
}

// rename reads what follows RENAME.
func (r *reader) rename() bool {
	if r.keyword("USER") {
		return r.skipRest()
	}
	if !r.keyword("TABLE", "TABLES") || !r.ifExists() {
		return false
	}
	for {
		from, ok := r.table()
		r.options()
		if !ok || !r.keyword("TO") {
			return false
		}
		r.addChange(event.Alter, from)
		to, ok := r.table()
		if !ok {
			return false
		}
		r.addChange(event.Replace, to)
		if !r.accept(',') {
			return r.atEnd()
		}
	}
}

// repair reads what follows REPAIR. Rows that cannot be repaired are lost, and not logged:
// https://dev.mysql.com/doc/refman/8.4/en/repair-table.html. (OPTIMIZE loses none.)
func (r *reader) repair() bool {
	r.keyword("LOCAL", "NO_WRITE_TO_BINLOG")
	if r.keyword("VIEW") {
		return r.skipRest()
	}
	return r.keyword("TABLE", "TABLES") && r.tables(event.Replace)
}

// maxXID is the maximum length of an XID. Both servers log at most 285 bytes.
const maxXID = 512

// xa reads what follows XA: https://dev.mysql.com/doc/refman/8.4/en/xa-statements.html. It keeps
// the spelling of the identifier, because a server logs all statements of a transaction with the
// same one.
func (r *reader) xa() bool {
	switch {
	case r.keyword("START", "BEGIN", "END", "PREPARE"):
		r.effect.Control = XA
	case r.keyword("COMMIT"):
		r.effect.Control = XACommit
	case r.keyword("ROLLBACK"):
		r.effect.Control = XARollback
	default:
		return r.keyword("RECOVER") && r.skipRest()
	}
	var xid strings.Builder
	for xid.Len() <= maxXID && r.token.kind != end && r.token.text != ";" &&
		!slices.ContainsFunc([]string{"JOIN", "RESUME", "SUSPEND", "ONE"}, r.token.is) {
		if r.token.kind == single || r.token.kind == double {
			xid.WriteString("'" + r.token.text + "'")
		} else {
			xid.WriteString(r.token.text)
		}
		r.next()
	}
	r.effect.XID = xid.String()
	return xid.Len() > 0 && xid.Len() <= maxXID && r.skipRest()
}
