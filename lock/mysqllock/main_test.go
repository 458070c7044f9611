package mysqllock_test

import (
	"flag"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	// Most tests only wait, so the number of processors does not matter.
	_ = flag.Set("test.parallel", "16")
	testenv.Main(m)
}
