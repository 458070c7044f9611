package lock_test

import (
	"flag"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	// Most suite tests only wait; -parallel on the command line prevails.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	testenv.Main(m)
}
