package mysqllock

import (
	"database/sql"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// NewDriver returns the driver of New with the default options.
func NewDriver(db *sql.DB) driver.Driver { return newDriver(db, (*Options)(nil).withDefaults()) }
