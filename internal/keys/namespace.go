// Package keys encodes keys as text, and derives their names in Redis from it.
//
// Processes of different versions share these names and the entries stored under them. A change
// of the names would lose the cache, and an Invalidate of one version would not reach the other.
package keys

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// maxText is the maximum length, in bytes, of a text that is part of a name before escaping. The
// name of a longer text contains its hash. Redis and the tools that list or log its keys accept
// much longer names, but store and compare them in full for every key.
const maxText = 256

// hashedMark begins the tag of a long text. The tag of a short text cannot begin with it: in such a
// tag, a "%" is followed by 25 or 7D, or is the whole tag.
const hashedMark = "%~"

// A Namespace builds the names in Redis of one loader's keys:
//
//	prefix:loader:version:{tag}
//
// A cluster computes a name's hash slot from the text between its first "{" and the next "}", if
// that is not empty. The prefix, loader and version contain no brace, and a tag is never empty
// and contains no "}". So the tag determines the slot for any key, and a name with a suffix is in
// the same slot.
//
// The tag is the text with "%" written as "%25" and "}" as "%7D". It is a lone "%" for the empty
// text. For a text longer than 256 bytes it is
//
//	%~length~hash
//
// with the text's length in decimal and its SHA-256 in base64url without padding. Different texts
// have different names, unless they are long, have the same length, and have the same SHA-256. So
// the entries of long keys contain the full text, which is compared. All texts under one name
// have the same length, so an entry can begin with the text without stating where it ends
// (lease.Entry.Unkey).
//
// A Namespace is immutable and safe for concurrent use. NewNamespace creates it.
type Namespace struct {
	head  string        // all names up to the brace
	begun xxhash.Digest // hash state of the part before the text
}

// NewNamespace returns the Namespace of one loader. The caller has checked all three arguments
// with ValidName.
func NewNamespace(prefix, loader, version string) Namespace {
	n := Namespace{head: prefix + ":" + loader + ":" + version + ":{"}
	n.begun.Reset()
	_, _ = n.begun.WriteString(loader + "\x00") // never fails
	return n
}

// Name returns the name in Redis of the key with this text. long reports whether the name
// contains only a hash of the text. Then the entry must contain the full text.
func (n Namespace) Name(text string) (name string, long bool) {
	switch {
	case len(text) > maxText:
		return n.hashed(text), true
	case text == "":
		return n.head + "%}", false // a cluster ignores an empty tag
	case strings.IndexByte(text, '%') < 0 && strings.IndexByte(text, '}') < 0: // takes a third of ContainsAny's time
		return n.head + text + "}", false
	default:
		return n.head + strings.ReplaceAll(strings.ReplaceAll(text, "%", "%25"), "}", "%7D") + "}", false
	}
}

func (n Namespace) hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	b := make([]byte, 0, len(n.head)+len("%~9223372036854775807~}")+base64.RawURLEncoding.EncodedLen(len(sum)))
	b = append(b, n.head...)
	b = append(b, hashedMark...)
	b = strconv.AppendInt(b, int64(len(text)), 10)
	b = append(b, '~')
	b = base64.RawURLEncoding.AppendEncode(b, sum[:])
	return string(append(b, '}'))
}

// Hash returns a hash of loader and text that is the same in every process and program: xxhash64,
// seed 0, of the loader's name, a NUL and the text. Loaders' names contain no NUL, so no two
// pairs hash the same bytes.
func (n Namespace) Hash(text string) uint64 {
	d := n.begun
	_, _ = d.WriteString(text)
	return d.Sum64()
}

// GroupHash returns the stable hash of a group of a loader. It is the Hash of a text that no key of
// a usual loader has, so that it differs from the hashes of keys.
func GroupHash(loader, group string) uint64 {
	return NewNamespace("", loader, "").Hash("\x00group\x00" + group)
}

// ValidName reports whether s may be part of a name before the brace: one or more letters,
// digits, "_", "." and "-". So it contains no brace, and no colon, which separates the parts.
func ValidName(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '.', c == '-':
		default:
			return false
		}
	}
	return s != ""
}

// Hold returns the name of the hold of the key with this name in Redis. It is in the same slot.
// It differs from the names of all keys, which end with the brace, and from all other names that
// the library uses.
func Hold(name string) string { return name + ":hold" }

// Temporary returns the name of the key that holds an entry for a moment, before it is renamed to
// name. token identifies the load. It is in the same slot as name, and differs from all other names
// like that of Hold.
func Temporary(name, token string) string { return name + ":fill:" + token }

// Groups returns the name in Redis of the sorted set of a loader's invalidated groups, in the range
// of slots with this tag.
func Groups(prefix, loader, tag string) string {
	return prefix + "::groups:" + loader + ":{" + tag + "}"
}
