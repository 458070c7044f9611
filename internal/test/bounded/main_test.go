// Package bounded_test checks that no input, of any size, takes more than its limit.
package bounded_test

import (
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// rows is how many there are; all that the bounds are stated for in accept, fewer in make test.
func rows(accept, test int) int {
	if testenv.Accepting {
		return accept
	}
	return test
}
