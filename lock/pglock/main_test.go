package pglock_test

import (
	"flag"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // they mostly wait, whatever the number of processors
	testenv.Main(m)
}
