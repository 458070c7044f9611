// Package kept is what the checkpoints and the parkings of package canal share: folders, and names
// of tables.
package kept

import (
	"os"
	"regexp"
	"strings"
)

// SyncFolder has the names in a folder reach the disk.
func SyncFolder(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // it was read only
	return d.Sync()
}

// Table is what the name of a table may be.
var Table = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// InTable puts a table in the place of TABLE.
func InTable(statement, table string) string { return strings.Replace(statement, "TABLE", table, 1) }
