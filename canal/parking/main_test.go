package parking

import (
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/shop"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Rows and changes of shop.users.
var (
	row                    = shop.Row
	insert, update, remove = shop.Insert, shop.Update, shop.Delete
	errUnknown             = shop.ErrUnknown
)
