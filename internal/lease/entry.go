// Package lease implements the protocol by which the processes of a fleet share one Redis string
// for each cached key.
//
// The string holds an entry, the lease of a load in progress, the marker of a load that has just
// failed or whose value cannot be stored, or the mark of a writer who holds the key. A lease is
// acquired by SET with NX or by a script, only for a key that does not exist or is unreadable.
// Every other change is one SET with IFEQ or one script, which compares the string before it
// writes. Therefore deleting the key, by any means, voids all loads in progress: a value that was
// read from the database before the delete is never stored after it.
package lease

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"math"
	"time"

	"github.com/cacheaside/cacheaside/internal/groups"
)

// The first byte of the string. The high nibble is the kind, the low nibble is the version of the
// format.
const (
	entryByte  = 0xE1
	leaseByte  = 0xA1
	failedByte = 0xF1
	markByte   = 0xC1

	unstorableByte = 0xD1 // followed by a Reason
)

// The layout. It is the same for all kinds, so that a script finds the token without knowing the
// kind:
//
//	0      kind and format version
//	1      flags in the low nibble, codec in the high nibble; of a lease: see awaitScript
//	2-13   the token of a lease or a mark; the stamp of an entry, which is the token of the load
//	       that stored it
//	14-19  the soft expiry of an entry, Unix milliseconds
//	20-23  the load cost of an entry in microseconds; for a claimed entry, the end of the claim by
//	       Redis' clock, in milliseconds modulo 2^32
//	24-31  the generation of the entry's loader
//	32-    the payload of an entry, preceded by the full key if the entry is keyed. The length of
//	       the key is not stored: it is part of the name of the string
//
// The codec of an entry with groups is 0, and flagNull is not set, so versions that do not know
// groups cannot read it. Its groups precede the key and the payload:
//
//	32     codec in the high nibble, 1 if the row does not exist, otherwise 0
//	33-40  the last number of the loader's log of groups before the load began
//	41     the number of groups
//	42-    the stable hashes of the groups, 8 bytes each
const (
	tokenAt      = 2
	expiryAt     = 14
	costAt       = 20
	generationAt = 24
	headerSize   = 32
	groupsHead   = 10
	leaseSize    = 14 // also the size of a mark
)

// The flags. The scripts know the value of flagClaimed, which is set while a refresh of the entry
// is in progress.
const (
	flagClaimed    = 1 << iota
	flagNull       // the row does not exist
	flagCompressed // the payload is compressed
	flagKeyed      // the full key precedes the payload
)

// awaitedBit is set in the second byte of a lease whose end is announced: see awaitScript.
const awaitedBit = 1 << 7

// maxClaim is the maximum remaining time of a claim. The end of a claim is stored modulo 49.7
// days, so an end that seems to be further ahead than maxClaim is in the past.
const maxClaim = time.Hour

// A Token identifies one load. It never identifies a process: a second load of the same process
// would then revive the lease of the first.
//
// The zero Token belongs to no load. It is the stamp of an entry whose reload has failed; the
// claim of that entry prevents other reloads until ErrorTTL has passed.
type Token [12]byte

func (t Token) String() string { return hex.EncodeToString(t[:]) }

// An Entry is a cached value, or the cached absence of a row.
type Entry struct {
	Null       bool  // the row does not exist
	Compressed bool  // Payload is compressed
	Keyed      bool  // Key precedes the payload, because the name in Redis contains only its hash
	Codec      uint8 // the encoding of Payload, 0 to 15
	// the entry has a claim, live or expired: a refresh is in progress or has failed, or its
	// process has died
	Claimed    bool
	ClaimEnds  uint32        // the end of the claim, if Claimed: see the layout
	Stamp      Token         // the token of the load that stored the entry, or that claims it
	Expiry     time.Time     // the end of the soft life, by Redis' clock as the process that stored the entry knew it
	Cost       time.Duration // how long the load took; 0 if Claimed
	Generation uint64        // the generation of the loader when the load began; an older one is outdated
	// the loader of the process that stored the entry has groups; then Known and Groups are set
	Grouped bool
	Known   uint64     // groups.Log.Last before the load began
	Groups  groups.Set // at most MaxGroups; after a read it aliases the raw bytes
	// the key of a keyed entry that is to be stored; after a read it is the beginning of Payload
	// instead
	Key     string
	Payload []byte
}

// MaxGroups is the maximum number of groups of an entry.
const MaxGroups = 64

// MaxGroupsSize is the maximum size in bytes of the part of an entry that contains its groups.
const MaxGroupsSize = groupsHead + 8*MaxGroups

// Taken reports whether the claim of the entry is live at now: a refresh is in progress, or has
// just failed. The end of a claim is by Redis' clock. If now is by another clock, the result is
// off by the difference of the two.
func (e *Entry) Taken(now time.Time) bool {
	left := time.Duration(e.ClaimEnds-uint32(now.UnixMilli())) * time.Millisecond
	return e.Claimed && left > 0 && left <= maxClaim
}

// Failed reports whether the last reload of the entry has failed.
func (e *Entry) Failed() bool { return e.Claimed && e.Stamp == Token{} }

// Unkey removes the full key from the payload of an entry that was read under the name of key. It
// returns false if the entry does not belong to key: only one of the two is keyed, or the full
// keys differ.
func (e *Entry) Unkey(key string, keyed bool) bool {
	if e.Keyed != keyed {
		return false
	}
	if !keyed {
		return true
	}
	rest, ok := bytes.CutPrefix(e.Payload, []byte(key))
	e.Payload = bytes.Clone(rest) // a value may share its memory, and must not keep a long key alive
	return ok
}

// A Kind is the state of a key.
type Kind uint8

// The states of a key, as one attempt sees it.
const (
	Absent     Kind = iota // the key does not exist
	Stored                 // the key holds an entry
	Busy                   // another load is in progress: it has a lease or, if it is a refresh, a claim
	Mine                   // this attempt owns the lease or the claim, so its load may begin
	Failed                 // a load has just failed
	Unknown                // the key holds bytes that this version cannot decode
	Held                   // the key is on hold: it has no valid entry, and no lease is granted
	Unstorable             // a load has just returned a value that cannot be stored
)

// A Reason is why a value cannot be stored. Another version may have other reasons.
type Reason uint8

// The reasons.
const (
	TooLarge   Reason = iota + 1 // its encoding is longer than LoaderOptions.MaxValueBytes
	NotCarried                   // the codec would change it
	GroupHeld                    // one of its groups was invalidated within ReplicaLag before its load
)

// A State is the content of a key, as the reply to a command shows it.
type State struct {
	Kind  Kind
	Token Token // the token of the lease, or of the hold that has left the mark
	// the end of the lease will be announced, because many processes wait for it
	Awaited bool
	Left    time.Duration // until the lease ends unless it is renewed; 0 if it is not known
	Entry   Entry         // the entry, if Kind is Stored; its Payload aliases Raw
	Raw     []byte
	Long    bool // Raw is only the beginning of the content

	Reason Reason // if Kind is Unstorable
}

// appendEntry appends the encoded form of e to dst.
func appendEntry(dst []byte, e Entry) []byte {
	flags := e.Codec << 4
	if e.Null {
		flags |= flagNull
	}
	inner := flags
	if e.Grouped {
		flags = 0
	}
	if e.Claimed {
		flags |= flagClaimed
	}
	if e.Compressed {
		flags |= flagCompressed
	}
	if e.Keyed {
		flags |= flagKeyed
	}
	dst = append(dst, entryByte, flags)
	dst = append(dst, e.Stamp[:]...)
	var word [8]byte
	binary.BigEndian.PutUint64(word[:], uint64(max(e.Expiry.UnixMilli(), 0)))
	dst = append(dst, word[2:]...)
	if e.Claimed {
		dst = binary.BigEndian.AppendUint32(dst, e.ClaimEnds)
	} else {
		dst = binary.BigEndian.AppendUint32(dst, uint32(min(max(e.Cost.Microseconds(), 0), math.MaxUint32)))
	}
	dst = binary.BigEndian.AppendUint64(dst, e.Generation)
	if e.Grouped {
		dst = append(dst, inner&0xF0|inner&flagNull/flagNull)
		dst = binary.BigEndian.AppendUint64(dst, e.Known)
		dst = append(append(dst, byte(e.Groups.Len())), e.Groups...)
	}
	if e.Keyed {
		dst = append(dst, e.Key...)
	}
	return append(dst, e.Payload...)
}

// HeadSize is the number of bytes at the beginning of a string that contain everything except the
// full key and the payload of an entry.
const HeadSize = headerSize

// Decode decodes the content of a key, or a prefix of it of at least HeadSize bytes. It never
// fails: the Kind of bytes that it cannot decode is Unknown.
func Decode(b []byte) (s State) {
	s.Kind, s.Raw = Unknown, b
	switch {
	case len(b) >= headerSize && b[0] == entryByte:
		s.Kind = Stored
		var word [8]byte
		copy(word[2:], b[expiryAt:costAt])
		s.Entry = Entry{
			Null:       b[1]&flagNull != 0,
			Compressed: b[1]&flagCompressed != 0,
			Keyed:      b[1]&flagKeyed != 0,
			Codec:      b[1] >> 4,
			Claimed:    b[1]&flagClaimed != 0,
			Stamp:      Token(b[tokenAt:expiryAt]),
			Expiry:     time.UnixMilli(int64(binary.BigEndian.Uint64(word[:]))),
			Generation: binary.BigEndian.Uint64(b[generationAt:]),
			Payload:    b[headerSize:],
		}
		if end := binary.BigEndian.Uint32(b[costAt:]); s.Entry.Claimed {
			s.Entry.ClaimEnds = end
		} else {
			s.Entry.Cost = time.Duration(end) * time.Microsecond
		}
		if s.Entry.Codec == 0 && !s.Entry.Null && !s.Entry.takeGroups() {
			s = State{Kind: Unknown, Raw: b}
		}
	case len(b) == leaseSize && b[0] == leaseByte:
		s.Kind = Busy
		s.Token, s.Awaited = Token(b[tokenAt:leaseSize]), b[1] >= awaitedBit
	case len(b) == leaseSize && b[0] == markByte:
		s.Kind = Held
		s.Token = Token(b[tokenAt:leaseSize])
	case len(b) == 1 && b[0] == failedByte:
		s.Kind = Failed
	case len(b) == 2 && b[0] == unstorableByte && b[1] != 0:
		s.Kind, s.Reason = Unstorable, Reason(b[1])
	}
	return s
}

// takeGroups moves the groups of an entry from its payload into its fields. It returns false if the
// payload does not begin with groups.
func (e *Entry) takeGroups() bool {
	b := e.Payload
	if len(b) < groupsHead || b[0]&0x0F > 1 {
		return false
	}
	size := groupsHead + 8*int(b[groupsHead-1])
	if len(b) < size || size > MaxGroupsSize {
		return false
	}
	e.Grouped, e.Codec, e.Null = true, b[0]>>4, b[0]&1 != 0
	e.Known = binary.BigEndian.Uint64(b[1:])
	e.Groups, e.Payload = groups.Set(b[groupsHead:size:size]), b[size:]
	return true
}

func appendLease(dst []byte, t Token) []byte {
	return append(append(dst, leaseByte, 0), t[:]...)
}

func appendMark(dst []byte, token string) []byte {
	return append(append(dst, markByte, 0), token...)
}

// newToken returns a random token of 96 bits, so that no two loads of a fleet have the same one.
func newToken() (t Token) {
	rand.Read(t[:]) // never fails (crypto/rand)
	return t
}
