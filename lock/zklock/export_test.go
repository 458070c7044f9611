package zklock

import (
	"testing"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// NewDriver returns the driver of New.
func NewDriver(t testing.TB, addr string, options *Options) driver.Driver {
	t.Helper()
	o := options.withDefaults()
	checked, err := addresses([]string{addr})
	if err == nil {
		err = o.check()
	}
	if err != nil {
		t.Fatal(err)
	}
	return newClient(checked, o)
}
