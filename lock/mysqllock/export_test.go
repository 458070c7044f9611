package mysqllock

import (
	"database/sql"

	"github.com/cacheaside/cacheaside/internal/rowlock"
	"github.com/cacheaside/cacheaside/internal/sqlname"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// NewDriver returns the driver of New with the default options.
func NewDriver(db *sql.DB) driver.Driver {
	o := (*Options)(nil).withDefaults()
	return rowlock.New(db, table{sqlname.Quote(o.Table)}, o.Poll)
}
