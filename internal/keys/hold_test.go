package keys

import (
	"strings"
	"testing"
)

// A hold is in the slot of its key, and is no key's name.
func TestHoldsAreNoKeys(t *testing.T) {
	n := NewNamespace("p", "users", "1")
	for _, text := range []string{"", "a", "}", "a}:hold", ":hold", "}:hold", "{:hold", strings.Repeat("x", 1000)} {
		name, _ := n.Name(text)
		hold := Hold(name)
		if slotText(hold) != slotText(name) {
			t.Errorf("%q is not in the slot of %q", hold, name)
		}
		if !strings.HasSuffix(name, "}") || strings.HasSuffix(hold, "}") {
			t.Errorf("%q may be a key's name", hold)
		}
	}
}
