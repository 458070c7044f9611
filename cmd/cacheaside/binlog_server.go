package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
)

// asker executes a query. It returns each row by the lower-case names of its columns. NULL is "".
type asker func(ctx context.Context, query string, args ...any) ([]map[string]string, error)

func askerOf(db *sqlx.DB) asker {
	return func(ctx context.Context, query string, args ...any) (all []map[string]string, err error) {
		rows, err := db.QueryxContext(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		defer rows.Close() //nolint:errcheck // rows.Err returns the error
		for rows.Next() {
			cells := make(map[string]any)
			if err := rows.MapScan(cells); err != nil {
				return nil, err
			}
			row := make(map[string]string)
			for name, v := range cells {
				row[strings.ToLower(name)] = text(v)
			}
			all = append(all, row)
		}
		return all, rows.Err()
	}
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []byte:
		return string(v)
	}
	return fmt.Sprint(v)
}

// serverStatus is the state of the binary log of a server.
type serverStatus struct {
	Version  string    `json:"version"`
	Executed string    `json:"executed"` // the GTIDs that it has logged
	File     string    `json:"file,omitempty"`
	Position string    `json:"position,omitempty"`
	Oldest   string    `json:"oldest_log,omitempty"`
	Logs     int       `json:"logs"`
	Bytes    int64     `json:"bytes"`
	Denied   string    `json:"denied,omitempty"` // why the logs cannot be listed
	Settings []setting `json:"settings"`

	mariadb bool
}

// setting is a setting of the server that a Consumer needs.
type setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	OK     bool   `json:"ok"`
	Needed string `json:"needed,omitempty"`
}

// serverNow reads the settings and the state of the log of a server.
func serverNow(ctx context.Context, ask asker) (*serverStatus, error) {
	rows, err := ask(ctx, "SELECT VERSION() AS version")
	if err != nil || len(rows) == 0 {
		return nil, orNothing(err)
	}
	s := &serverStatus{Version: rows[0]["version"]}
	s.mariadb = strings.Contains(s.Version, "MariaDB")
	if err := s.settings(ctx, ask); err != nil {
		return nil, err
	}
	executed := "SELECT @@global.gtid_executed AS executed"
	if s.mariadb {
		executed = "SELECT @@global.gtid_binlog_pos AS executed"
	}
	if rows, err = ask(ctx, executed); err != nil || len(rows) == 0 {
		return nil, orNothing(err)
	}
	s.Executed = strings.ReplaceAll(rows[0]["executed"], "\n", "")
	return s, s.logFiles(ctx, ask)
}

func orNothing(err error) error {
	if err == nil {
		err = errors.New("the server returned no rows")
	}
	return err
}

// logFiles reads the list of logs, which requires a privilege. Without the privilege it sets
// Denied.
func (s *serverStatus) logFiles(ctx context.Context, ask asker) error {
	rows, err := ask(ctx, "SHOW BINARY LOGS")
	if refused(err) {
		s.Denied = "the user may not see them (REPLICATION CLIENT, in MariaDB BINLOG MONITOR), or the server keeps none"
		return nil
	}
	if err != nil {
		return err
	}
	s.Logs = len(rows)
	for i, r := range rows {
		if i == 0 {
			s.Oldest = r["log_name"]
		}
		n, _ := strconv.ParseInt(r["file_size"], 10, 64)
		s.Bytes += n
	}
	for _, query := range []string{"SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"} {
		// MySQL has the second since 8.2, and only that since 8.4
		if rows, err = ask(ctx, query); err == nil && len(rows) > 0 {
			s.File, s.Position = rows[0]["file"], rows[0]["position"]
			return nil
		}
		if err != nil && !refused(err) {
			return err
		}
	}
	return nil
}

// refused reports whether err is an error that the server has returned.
func refused(err error) bool {
	_, ok := errors.AsType[*mysql.MySQLError](err)
	return ok
}

// settings reads the settings that package mysqlbinlog requires.
func (s *serverStatus) settings(ctx context.Context, ask asker) error {
	rows, err := ask(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', "+
		"'binlog_row_image', 'binlog_row_metadata', 'gtid_mode')")
	if err != nil {
		return err
	}
	is := make(map[string]string)
	for _, r := range rows {
		is[strings.ToLower(r["variable_name"])] = r["value"]
	}
	add := func(name string, ok bool, needed string) {
		if ok {
			needed = ""
		}
		s.Settings = append(s.Settings, setting{Name: name, Value: is[name], OK: ok, Needed: needed})
	}
	add("log_bin", is["log_bin"] == "ON" || is["log_bin"] == "1", "it must be ON: the server writes no binary log")
	add("binlog_format", is["binlog_format"] == "ROW", "it must be ROW: otherwise changes are logged as statements")
	add("binlog_row_metadata", is["binlog_row_metadata"] == "FULL",
		"it must be FULL: otherwise the log neither names columns nor distinguishes signed from unsigned numbers "+
			"(MariaDB since 10.5, MySQL since 8.0.1)")
	add("binlog_row_image", is["binlog_row_image"] == "FULL" || is["binlog_row_image"] == "NOBLOB" ||
		is["binlog_row_image"] == "FULL_NODUP", "it must be FULL, unless all keys are made of the primary key alone")
	if !s.mariadb {
		add("gtid_mode", is["gtid_mode"] == "ON", "it must be ON, so that a position holds on every server")
	}
	return nil
}
