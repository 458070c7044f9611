package lock_test

import (
	"flag"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil { // tests of the suite mostly wait; -parallel on the command line prevails
		panic(err)
	}
	testenv.Main(m)
}
