package mysqlbinlog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/cacheaside/cacheaside/canal/event"
)

// server holds the properties of a server.
type server struct {
	*session
	flavor   string
	id       string         // server_uuid, or for MariaDB server_id
	image    string         // binlog_row_image
	charsets map[int]string // by collation ID
	padsChar bool           // sql_mode has PAD_CHAR_TO_FULL_LENGTH
	// table names in the log are in lower case, except in the text of statements
	// (lower_case_table_names)
	lowerCase bool
}

// inspect reads the properties of a server, and returns an error if a setting does not suffice.
func inspect(s *session, need event.Need) (*server, error) {
	srv := &server{session: s, flavor: mysql.MySQLFlavor}
	general, err := s.ask("SELECT VERSION(), @@global.log_bin, @@global.binlog_format, @@global.binlog_row_image, " +
		"@@global.lower_case_table_names, @@global.sql_mode, @@global.server_id")
	if err != nil {
		return nil, err
	}
	version, logs, format, lower := general[0][0], general[0][1], general[0][2], general[0][4]
	srv.image, srv.id = strings.ToUpper(general[0][3]), general[0][6]
	srv.lowerCase = lower != "0"
	srv.padsChar = strings.Contains(general[0][5], "PAD_CHAR_TO_FULL_LENGTH")
	if strings.Contains(version, "MariaDB") {
		srv.flavor = mysql.MariaDBFlavor
	}
	if logs != "1" {
		return nil, setup("log_bin is OFF, so the server writes no binary log: start it with log_bin")
	}
	if format != "ROW" {
		return nil, setup("binlog_format is %s: it must be ROW, because changes are logged as statements otherwise: "+
			"SET GLOBAL binlog_format = 'ROW', and in the server's configuration", format)
	}
	metadata, err := s.ask("SELECT @@global.binlog_row_metadata")
	if unknownVariable(err) {
		return nil, setup("version %s does not have binlog_row_metadata: MariaDB has it since 10.5, MySQL since 8.0.1",
			version)
	}
	if err != nil {
		return nil, err
	}
	if m := metadata[0][0]; m != "FULL" {
		return nil, setup("binlog_row_metadata is %s: it must be FULL, because the log does not name columns and "+
			"does not mark unsigned numbers otherwise: SET GLOBAL binlog_row_metadata = 'FULL', and in the server's "+
			"configuration", m)
	}
	if srv.flavor == mysql.MySQLFlavor {
		mode, err := s.ask("SELECT @@global.gtid_mode, @@global.server_uuid")
		if err != nil {
			return nil, err
		}
		srv.id = mode[0][1]
		if mode[0][0] != "ON" {
			return nil, setup("gtid_mode is %s: it must be ON, so that positions are valid on every server and "+
				"visible transactions can be queried", mode[0][0])
		}
	}
	for _, t := range slices.SortedFunc(maps.Keys(need.Tables), compareTables) {
		if srv.lowerCase && strings.ToLower(t.Schema+t.Name) != t.Schema+t.Name {
			return nil, setup("table %s.%s: lower_case_table_names is %s, so the log has names in lower case: use "+
				"lower case in the Binding", t.Schema, t.Name, lower)
		}
	}
	if err := srv.images(need); err != nil {
		return nil, err
	}
	return srv, srv.collations()
}

func compareTables(a, b event.Table) int {
	return strings.Compare(a.Schema+"."+a.Name, b.Schema+"."+b.Name)
}

// images returns an error if the key of a table is not in each row image. With MINIMAL, the log
// contains the primary key and the changed columns; without a primary key, it contains all
// columns. images checks only tables that the user can see. For other tables such changes are not
// understood.
func (s *server) images(need event.Need) error {
	if s.image != "MINIMAL" {
		return nil
	}
	for t, columns := range need.Tables {
		rows, err := s.ask("SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND "+
			"TABLE_NAME = ? AND INDEX_NAME = 'PRIMARY'", t.Schema, t.Name)
		if err != nil {
			return err
		}
		for _, c := range columns {
			if len(rows) > 0 && !slices.ContainsFunc(rows,
				func(primary []string) bool { return strings.EqualFold(primary[0], c) }) {
				return setup("table %s.%s: binlog_row_image is MINIMAL, which logs the primary key and the changed "+
					"columns; column %s, from which a Binding makes keys, is not in the primary key: "+
					"binlog_row_image must be FULL: SET GLOBAL binlog_row_image = 'FULL', and in the server's "+
					"configuration", t.Schema, t.Name, c)
			}
		}
	}
	return nil
}

// collations reads the character set of each collation.
func (s *server) collations() error {
	// since MariaDB 10.10, where collations of several character sets have IDs only here
	rows, err := s.ask("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY")
	if err != nil {
		rows, err = s.ask("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS")
	}
	if err != nil {
		return err
	}
	s.charsets = make(map[int]string, len(rows))
	for _, r := range rows {
		var id int
		if _, err := fmt.Sscan(r[0], &id); err == nil && r[1] != "" { // some have no ID
			s.charsets[id] = r[1]
		}
	}
	if len(s.charsets) == 0 {
		return errors.New("the server names no collations")
	}
	return nil
}

// executed returns the position after all logged transactions.
func (s *server) executed() (position, error) {
	variable := "@@global.gtid_executed"
	if s.flavor == mysql.MariaDBFlavor {
		variable = "@@global.gtid_binlog_pos"
	}
	rows, err := s.ask("SELECT " + variable)
	if err != nil {
		return position{}, err
	}
	return parseSet(strings.ReplaceAll(rows[0][0], "\n", ""), s.flavor)
}

// cascades returns the constraints through which a change of a table that is not needed makes
// InnoDB change rows of a needed table without logging them. MySQL 9.7 changes and logs those
// rows itself, unless innodb_native_foreign_keys is ON
// (https://dev.mysql.com/doc/refman/9.7/en/replication-features-foreign-keys.html).
func (s *server) cascades(need event.Need) ([]string, error) {
	native, err := s.ask("SELECT @@global.innodb_native_foreign_keys")
	if err == nil && native[0][0] == "0" {
		return nil, nil
	}
	if err != nil && !unknownVariable(err) {
		return nil, err
	}
	rows, err := s.ask("SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, UNIQUE_CONSTRAINT_SCHEMA, " +
		"REFERENCED_TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE DELETE_RULE IN ('CASCADE', 'SET " +
		"NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL')")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range rows {
		_, child := need.Tables[event.Table{Schema: r[0], Name: r[1]}]
		_, parent := need.Tables[event.Table{Schema: r[3], Name: r[4]}]
		if child && !parent {
			names = append(names, fmt.Sprintf("%s of %s.%s", r[2], r[0], r[1]))
		}
	}
	return names, nil
}
