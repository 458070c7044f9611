package event

import (
	"testing"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
