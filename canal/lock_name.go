package canal

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside/internal/writeside"
)

// An IdentifiedSource is a Source that knows what it reads.
type IdentifiedSource interface {
	Source

	// Identity returns a text that names what the Source reads, such as a database and a slot. All
	// processes of a program must have the same one, so it contains no address that may differ
	// between them, and no password. exclusive reports whether only one Source with this text can
	// run at a time. It does no I/O. The default of Options.Name depends on it.
	Identity() (reads string, exclusive bool)
}

// lockName returns the default of Options.Name. Consumers of two applications must not wait for
// each other, so it depends on the prefix of the Cache, on what the Source reads, and on the
// Bindings. It does not depend on the Bindings if only one Source can run: then Consumers of two
// releases of a program, with different Bindings, must wait for each other.
func (c *Consumer) lockName() string {
	var parts []string
	reads, exclusive := "", false
	if s, ok := c.source.(IdentifiedSource); ok {
		reads, exclusive = s.Identity()
	}
	if !exclusive {
		for i := range c.bindings {
			b := &c.bindings[i]
			parts = append(parts, b.table.Schema+"\x00"+b.table.Name+"\x00"+b.name)
		}
		slices.Sort(parts)
	}
	parts = append(parts, reads)
	prefix := writeside.Of(c.cache).Prefix()
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00\x00")))
	return "canal:" + prefix + ":" + hex.EncodeToString(sum[:8])
}
