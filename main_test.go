package cacheaside

import (
	"testing"

	_ "github.com/cacheaside/cacheaside/internal/test/sqlite" // the driver of the examples
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
