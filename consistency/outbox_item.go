package consistency

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/cacheaside/cacheaside"
)

// rowID is the primary key of an item, its ID in binary. It is the client's: nobody has to ask the
// database for it, and a caller that does not know whether a Put has come about can repeat it. The
// time (48 bits, in ms) is in front, and only there so that rows of the same time are near each
// other; what makes it unique is random.
type rowID [16]byte

// newID makes an Item.ID.
func newID() string {
	var i rowID
	rand.Read(i[:])
	copy(i[:], binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli())<<16)[:6])
	return hex.EncodeToString(i[:])
}

// newClaim is the number of a claim, above 0.
func newClaim() int64 {
	var b [8]byte
	rand.Read(b[:])
	return int64(binary.BigEndian.Uint64(b[:])>>1 | 1)
}

// parseID reads an Item.ID.
func parseID(s string) (i rowID, err error) {
	if n, err := hex.Decode(i[:], []byte(s[:min(len(s), hex.EncodedLen(len(i)))])); err != nil || n != len(i) || len(s) != hex.EncodedLen(n) {
		return i, fmt.Errorf("Item.ID %q: 32 hexadecimal digits, or none", s)
	}
	return i, nil
}

// parseClaim reads an Item.Claim. It is 0 of what was not claimed.
func parseClaim(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	claim, err := strconv.ParseInt(s, 10, 64)
	if err != nil || claim <= 0 {
		return 0, fmt.Errorf("Item.Claim %q is not of an outbox", s)
	}
	return claim, nil
}

// Limits of the table's columns.
const (
	longestName = 255
	longestText = 65535
)

// checkItem refuses what cannot be kept. It gives an item an ID that has none.
func checkItem(item Item) (rowID, error) {
	if err := item.Key.Check(); err != nil {
		return rowID{}, err
	}
	if err := tooLong(item.Key); err != nil {
		return rowID{}, fmt.Errorf("key#%016x: %w", item.Key.Hash(), err)
	}
	if item.ID == "" {
		item.ID = newID()
	}
	return parseID(item.ID)
}

func tooLong(key cacheaside.Key) error {
	for _, part := range []struct {
		field string
		text  string
		most  int
	}{{"Loader", key.Loader, longestName}, {"Version", key.Version, longestName}, {"Text", key.Text, longestText}} {
		if len(part.text) > part.most {
			return fmt.Errorf("its %s has %d bytes: an outbox keeps %d at most", part.field, len(part.text), part.most)
		}
	}
	return nil
}

// cells are a row as Claim reads it: itemColumns, and the age.
type cells [12]any

// item makes an Item of a row, whatever is in it. If it is not readable, its Key is one that
// Key.Check refuses.
func (c *cells) item() (item Item, readable bool) {
	id, ok1 := bytesOf(c[0])
	loader, ok2 := bytesOf(c[3])
	version, ok3 := bytesOf(c[4])
	text, ok4 := bytesOf(c[5])
	item = Item{
		ID:       hex.EncodeToString(id[:min(len(id), len(rowID{}))]),
		Claim:    strconv.FormatInt(numberOf(c[1]), 10),
		Again:    duration(c[7]),
		Reload:   numberOf(c[8]) != 0,
		Attempts: int(min(max(0, numberOf(c[9])), math.MaxInt32)),
		Admit:    numberOf(c[10]) != 0,
		Age:      duration(c[11]),
	}
	key := cacheaside.Key{Loader: string(loader), Version: string(version), Text: string(text), All: numberOf(c[6]) != 0}
	if !ok1 || !ok2 || !ok3 || !ok4 || key.Check() != nil || tooLong(key) != nil {
		return item, false
	}
	item.Key = key
	return item, true
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

// numberOf is 0 for what is no number.
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

// duration is of microseconds.
func duration(v any) time.Duration {
	return time.Duration(min(max(0, numberOf(v)), math.MaxInt64/1000)) * time.Microsecond
}

// claiming is one claim in MySQL.
type claiming struct {
	name  int64
	until int64
	rows  int64
}

// depthAtMost is the maximum that Depth counts.
const depthAtMost = 100_001
