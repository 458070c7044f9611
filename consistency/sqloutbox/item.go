package sqloutbox

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
)

// A rowID is the binary form of an Item.ID; with the namespace it is the primary key. The client
// generates it, so it need not be read back from the database, and a Put with an unknown outcome
// can be repeated. Rows whose IDs were generated at the same time are stored near each other.
type rowID [16]byte

// newClaim returns the number of a new claim, above 0.
func newClaim() int64 {
	var b [8]byte
	rand.Read(b[:])
	return int64(binary.BigEndian.Uint64(b[:])>>1 | 1)
}

// parseID parses an Item.ID.
func parseID(s string) (i rowID, err error) {
	digits := s[:min(len(s), hex.EncodedLen(len(i)))]
	if n, err := hex.Decode(i[:], []byte(digits)); err != nil || n != len(i) || len(digits) != len(s) {
		return i, fmt.Errorf("Item.ID %q: 32 hexadecimal digits, or none", s)
	}
	return i, nil
}

// parseClaim parses an Item.Claim. It returns 0 for an item that was not claimed.
func parseClaim(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	claim, err := strconv.ParseInt(s, 10, 64)
	if err != nil || claim <= 0 {
		return 0, fmt.Errorf("Item.Claim %q: not a claim of an outbox", s)
	}
	return claim, nil
}

// Limits of the table's columns, in bytes.
const (
	maxName = 255
	maxText = 65535
)

// checkItem returns an error for an item that the table cannot store. It returns the item's ID,
// or a new one if the item has none.
func checkItem(item consistency.Item) (rowID, error) {
	if err := item.Key.Check(); err != nil {
		return rowID{}, err
	}
	if err := tooLong(item.Key); err != nil {
		return rowID{}, fmt.Errorf("key#%016x: %w", item.Key.Hash(), err)
	}
	if item.ID == "" {
		item.ID = consistency.NewID()
	}
	return parseID(item.ID)
}

func tooLong(key cacheaside.Key) error {
	for _, part := range []struct {
		field string
		text  string
		most  int
	}{{"Loader", key.Loader, maxName}, {"Version", key.Version, maxName}, {"Text", key.Text, maxText}} {
		if len(part.text) > part.most {
			return fmt.Errorf("its %s has %d bytes: an outbox stores at most %d", part.field, len(part.text), part.most)
		}
	}
	return nil
}

// cells holds a row as Claim reads it: itemColumns, and the age.
type cells [12]any

// item returns the Item of a row, for any content. If the row has no valid key, readable is false
// and Key.Check fails for the Item's Key.
func (c *cells) item() (item consistency.Item, readable bool) {
	id, ok1 := bytesOf(c[0])
	loader, ok2 := bytesOf(c[3])
	version, ok3 := bytesOf(c[4])
	text, ok4 := bytesOf(c[5])
	item = consistency.Item{
		ID:        hex.EncodeToString(id[:min(len(id), len(rowID{}))]),
		Claim:     strconv.FormatInt(numberOf(c[1]), 10),
		Again:     duration(c[7]),
		Reload:    numberOf(c[8]) != 0,
		Attempts:  int(min(max(0, numberOf(c[9])), math.MaxInt32)),
		Inserting: numberOf(c[10]) != 0,
		Age:       duration(c[11]),
	}
	scope := numberOf(c[6])
	key := cacheaside.Key{
		Loader: string(loader), Version: string(version), Text: string(text), Group: scope == groupOfKeys,
		All: scope != oneKey && scope != groupOfKeys,
	}
	if !ok1 || !ok2 || !ok3 || !ok4 || key.Check() != nil || tooLong(key) != nil {
		return item, false
	}
	item.Key = key
	return item, true
}

// The values of the column all_keys. Every value except 0 invalidates all keys of the loader in a
// release that does not know it. So a Relay of a release without groups invalidates the whole
// loader in place of a group, and never takes the name of a group for the text of a key.
const (
	oneKey = iota
	allKeys
	groupOfKeys
)

// scopeOf returns the value of the column all_keys for a key.
func scopeOf(key cacheaside.Key) int {
	switch {
	case key.All:
		return allKeys
	case key.Group:
		return groupOfKeys
	}
	return oneKey
}

func bytesOf(v any) ([]byte, bool) {
	switch v := v.(type) {
	case []byte:
		return v, true
	case string:
		return []byte(v), true
	}
	return nil, false
}

// numberOf returns 0 if v is not an integer.
func numberOf(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case []byte:
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err == nil {
			return n
		}
	}
	return 0
}

// duration converts a number of microseconds.
func duration(v any) time.Duration {
	return time.Duration(min(max(0, numberOf(v)), math.MaxInt64/1000)) * time.Microsecond
}

// A mysqlClaim identifies the rows of one claim in MySQL.
type mysqlClaim struct {
	number int64 // the random number of the claim
	ends   int64 // when the claim ends, by the clock of the database; 0: nothing was due
	rows   int64 // the number of rows
}

// maxDepth is the maximum number of items that Depth counts.
const maxDepth = 100_001
