// Package keys makes text of a key, and of that text a name in Redis.
//
// Names are a format that processes of different versions share, as they do the entries stored
// under them: a name that changes is a cache lost, and an Invalidate in one version that the other
// never sees.
package keys

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// maxText is how many bytes of text a name may hold before escaping; of longer ones it holds a
// hash. Redis, and whatever lists or logs its keys, would take far longer names, but keep and
// compare them in full for every key.
const maxText = 256

// hashedMark begins the tag of a long text. No short text's tag can: there 25 or 7D follows a "%",
// or nothing does.
const hashedMark = "%~"

// Namespace makes the names in Redis of one loader's keys:
//
//	prefix:loader:version:{tag}
//
// A cluster takes a name's hash slot from what stands between its first "{" and the first "}"
// behind it, if that is not empty. Neither prefix, loader nor version has a brace, and no tag has a
// "}" or is empty. So the slot is the tag's, whatever the key contains, and a name with anything
// added behind it is in the same slot.
//
// The tag is the text with "%" written as "%25" and "}" as "%7D", a lone "%" for the empty text,
// and for a text longer than 256 bytes
//
//	%~length~hash
//
// with the text's length in decimal and its SHA-256 in base64url without padding. Different texts
// have different names, unless they are long, equally long and of the same SHA-256: so the entries
// of long keys carry the text in full, to be compared. That all texts under one name are equally
// long is what lets an entry begin with the text and not say where it ends (lease.Entry.Unkey).
//
// A Namespace does not change and is safe for concurrent use; NewNamespace makes it.
type Namespace struct {
	head  string        // all names up to the brace
	begun xxhash.Digest // of what stands before the text in all hashes
}

// NewNamespace makes the Namespace of one loader. All three are valid names, of which the caller
// has made sure by ValidName.
func NewNamespace(prefix, loader, version string) Namespace {
	n := Namespace{head: prefix + ":" + loader + ":" + version + ":{"}
	n.begun.Reset()
	_, _ = n.begun.WriteString(loader + "\x00") // never fails
	return n
}

// Name returns the name in Redis of the key whose text this is. It is long if the name holds only a
// hash of the text: then the entry must carry the text in full.
func (n Namespace) Name(text string) (name string, long bool) {
	switch {
	case len(text) > maxText:
		return n.hashed(text), true
	case text == "":
		return n.head + "%}", false // an empty tag would not count
	case strings.IndexByte(text, '%') < 0 && strings.IndexByte(text, '}') < 0: // a third of ContainsAny's time
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

// Hash is a hash of loader and text that is the same in every process and every program: xxhash64,
// seed 0, of the loader's name, a NUL and the text. Loaders' names hold no NUL, so no two pairs
// hash the same bytes.
func (n Namespace) Hash(text string) uint64 {
	d := n.begun
	_, _ = d.WriteString(text)
	return d.Sum64()
}

// ValidName tells whether s may stand in a name before the brace: letters, digits, "_", "." and
// "-", and at least one of them. So it holds no brace, and none of the colons that keep the names
// of two Namespaces apart.
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

// Hold is the name of what puts a key on hold, made of the key's own name in Redis. It is in the
// same slot, and no name of any Namespace, for those end with the brace, nor of anything else that
// is kept in Redis.
func Hold(name string) string { return name + ":hold" }
