// Package logitem encodes the items of an outbox as messages in the log of a database. Package
// pglogical writes them, and package canal applies them.
package logitem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// Prefix returns the prefix of the messages of an application. It is not secret, and other
// programs can write messages with it.
func Prefix(namespace string) string { return "cacheaside:" + namespace }

// Namespace returns the namespace of messages with a prefix. ok is false for those of no outbox.
func Namespace(prefix string) (namespace string, ok bool) {
	namespace, ok = strings.CutPrefix(prefix, Prefix(""))
	return namespace, ok && CheckNamespace(namespace) == nil
}

// CheckNamespace returns an error with the namespace and the rule if it is not valid.
func CheckNamespace(namespace string) error {
	if !keys.ValidName(namespace) || len(namespace) > maxName {
		return fmt.Errorf("%.300q: only letters, digits, '_', '.' and '-', %d at most", namespace, maxName)
	}
	return nil
}

// An Item is a key to invalidate. The key may be that of a whole loader or of a group.
type Item struct {
	Key cacheaside.Key

	// Inserting means that the filter of the loader may not contain the key.
	Inserting bool
}

const (
	// MaxMessage is the maximum length of a message in bytes. A longer one is not from Encode, and
	// a Source may cut it.
	MaxMessage = 256 << 10

	fullMessage = 64 << 10 // Encode adds no item to a message of this length
	maxName     = math.MaxUint8
	maxText     = math.MaxUint16

	version1 = 1 // the first byte of a message

	// The flags of an item. A release refuses a message with a flag that it does not know.
	allFlag   = 1
	admitFlag = 2
	groupFlag = 4
	allFlags  = allFlag | admitFlag | groupFlag
)

// Check returns an error if Encode cannot encode the key. The error contains its hash only.
func Check(key cacheaside.Key) error {
	if err := key.Check(); err != nil {
		return err
	}
	for _, part := range parts(&key) {
		if len(*part.text) > part.most {
			return fmt.Errorf("key#%016x: its %s has %d bytes: an outbox stores at most %d", key.Hash(), part.field,
				len(*part.text), part.most)
		}
	}
	return nil
}

type part struct {
	field string
	text  *string
	most  int
}

// parts returns the texts of a key in the order of their encoding.
func parts(key *cacheaside.Key) [3]part {
	return [...]part{{"Loader", &key.Loader, maxName}, {"Version", &key.Version, maxName}, {"Text", &key.Text, maxText}}
}

// Encode returns messages with all items, whose keys must pass Check. A message has a version, the
// number of its items, and for each item its flags and the texts of its key with their lengths.
func Encode(items []Item) (messages [][]byte) {
	var body []byte
	n := 0
	flush := func() {
		if n > 0 {
			messages = append(messages, append(binary.AppendUvarint([]byte{version1}, uint64(n)), body...))
		}
		body, n = body[:0], 0
	}
	for i := range items {
		flags := byte(0)
		if items[i].Key.All {
			flags |= allFlag
		}
		if items[i].Inserting {
			flags |= admitFlag
		}
		if items[i].Key.Group {
			flags |= groupFlag
		}
		body = append(body, flags)
		for _, part := range parts(&items[i].Key) {
			body = append(binary.AppendUvarint(body, uint64(len(*part.text))), *part.text...)
		}
		if n++; len(body) >= fullMessage {
			flush()
		}
	}
	flush()
	return messages
}

// Decode returns the items of a message. An item of all keys of a loader has only the Loader, and
// one of a group also its name, so that such items are equal. The error contains nothing of the
// message.
func Decode(message []byte) ([]Item, error) {
	if len(message) == 0 || message[0] != version1 {
		return nil, errors.New("it is not in a format that this release knows")
	}
	rest := message[1:]
	count, ok := number(&rest)
	if !ok || count == 0 || count > uint64(len(rest))/4 { // an item has at least 4 bytes
		return nil, errors.New("the number of its items is wrong")
	}
	items := make([]Item, count)
	for i := range items {
		if !items[i].decode(&rest) {
			return nil, fmt.Errorf("item %d of %d is not valid", i+1, count)
		}
	}
	if len(rest) > 0 {
		return nil, errors.New("it is longer than its items")
	}
	return items, nil
}

// decode reads an item from the beginning of rest. It reports whether it is valid.
func (i *Item) decode(rest *[]byte) bool {
	if len(*rest) == 0 || (*rest)[0] > allFlags {
		return false
	}
	flags := (*rest)[0]
	*rest = (*rest)[1:]
	i.Key.All, i.Key.Group, i.Inserting = flags&allFlag != 0, flags&groupFlag != 0, flags&admitFlag != 0
	for _, part := range parts(&i.Key) {
		n, ok := number(rest)
		if !ok || n > uint64(len(*rest)) {
			return false
		}
		*part.text, *rest = string((*rest)[:n]), (*rest)[n:]
	}
	if Check(i.Key) != nil {
		return false
	}
	switch { // items that differ only in what means nothing are the same
	case i.Key.All:
		*i = Item{Key: cacheaside.Key{Loader: i.Key.Loader, All: true}}
	case i.Key.Group:
		*i = Item{Key: cacheaside.Key{Loader: i.Key.Loader, Text: i.Key.Text, Group: true}}
	}
	return true
}

// number reads a number from the beginning of rest.
func number(rest *[]byte) (n uint64, ok bool) {
	n, used := binary.Uvarint(*rest)
	if used <= 0 {
		return 0, false
	}
	*rest = (*rest)[used:]
	return n, true
}
