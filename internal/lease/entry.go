// Package lease is the protocol by which a fleet of processes shares one Redis string for each
// cached key.
//
// The string holds an entry, the lease of a load that is under way, the marker of a load that
// failed a moment ago, or the mark of a writer who holds the key. A lease is taken where there is
// nothing (SET with NX). Every other change is one script that compares before it writes. So
// deleting the key, by whatever means, voids all loads under way: a value that was read from the
// database before the delete is never stored after it.
package lease

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"math"
	"time"
)

// The first byte tells what the string holds: the high nibble the kind, the low one the version of
// the format.
const (
	entryByte  = 0xE1
	leaseByte  = 0xA1
	failedByte = 0xF1
	markByte   = 0xC1
)

// The layout, shared by all kinds so that a script finds the token without knowing the kind:
//
//	0      kind and format version
//	1      flags in the low nibble, codec in the high one
//	2-13   token: whose lease or mark this is; or the entry's stamp, the token of the load that
//	       stored it
//	14-19  an entry's soft expiry, Unix milliseconds
//	20-23  an entry's load cost in microseconds; in a claimed one, when the claim ends, by Redis'
//	       clock, in milliseconds modulo 2^32
//	24-31  the generation of its loader that an entry belongs to
//	32-    an entry's payload; before it the full key, if the entry is keyed. Its length need not be
//	       told: it is part of the name under which such an entry is stored
const (
	tokenAt      = 2
	expiryAt     = 14
	costAt       = 20
	generationAt = 24
	headerSize   = 32
	leaseSize    = 14 // a mark's, too
)

// flagClaimed is set while a refresh of the entry is under way; the scripts know its value.
const (
	flagClaimed    = 1 << iota
	flagNull       // there is no such row
	flagCompressed // the payload is
	flagKeyed      // the full key stands before the payload
)

// maxClaim is how far ahead the end of a claim can be: beyond that it is one of the past, for a
// claim is told modulo 49.7 days.
const maxClaim = time.Hour

// Token names one load: never a process, for then a second load of the same process would revive
// the first one's lease. That of nobody, zeros, is the stamp of an entry whose reload failed a
// moment ago; its claim keeps others from trying until ErrorTTL is over.
type Token [12]byte

func (t Token) String() string { return hex.EncodeToString(t[:]) }

// Entry is a stored answer.
type Entry struct {
	Null       bool          // there is no such row
	Compressed bool          // Payload is
	Keyed      bool          // Key stands before the payload: the name in Redis holds only its hash
	Codec      uint8         // how Payload is encoded, 0 to 15
	Claimed    bool          // a refresh is under way, or was when its holder died, or failed a moment ago
	ClaimEnds  uint32        // of a claimed one: see the layout
	Stamp      Token         // the load that stored it, or that claims it
	Expiry     time.Time     // end of its soft life by the clock of the process that stored it
	Cost       time.Duration // how long the load took; 0 if it is claimed
	Generation uint64        // of the loader, as the process that loaded it knew it when it began; entries of an older one are outdated
	Key        string        // of a keyed entry to be stored; in one that was read it still begins Payload
	Payload    []byte
}

// Taken tells whether a refresh of the entry is under way, or has failed a moment ago, if Redis'
// clock shows now.
func (e *Entry) Taken(now time.Time) bool {
	left := time.Duration(e.ClaimEnds-uint32(now.UnixMilli())) * time.Millisecond
	return e.Claimed && left > 0 && left <= maxClaim
}

// Failed tells whether the last reload of the entry has failed.
func (e *Entry) Failed() bool { return e.Claimed && e.Stamp == Token{} }

// Unkey takes the full key off the payload of an entry that was read under key's name. It answers
// false if the entry is not key's: either is keyed and the other is not, or the full keys differ.
func (e *Entry) Unkey(key string, keyed bool) bool {
	if e.Keyed != keyed {
		return false
	}
	if !keyed {
		return true
	}
	rest, ok := bytes.CutPrefix(e.Payload, []byte(key))
	e.Payload = bytes.Clone(rest) // for a value may share its memory, and is not to keep a long key alive
	return ok
}

// Kind says what a key holds.
type Kind uint8

// States of a key, as one attempt sees it.
const (
	Absent  Kind = iota // nothing
	Stored              // an entry
	Busy                // somebody else's load is under way: a lease, or for a refresh, a claim
	Mine                // this attempt's load may begin
	Failed              // a load failed a moment ago
	Unknown             // bytes that this version cannot read
	Held                // nothing that counts, and nothing may be loaded into it for a time
)

// State is what a command has shown of a key.
type State struct {
	Kind  Kind
	Token Token // of a lease, or of the hold whose mark it is
	Entry Entry // of Stored; Payload aliases Raw
	Raw   []byte
	Long  bool // Raw is only the beginning
}

// appendEntry encodes e.
func appendEntry(dst []byte, e Entry) []byte {
	flags := e.Codec << 4
	if e.Null {
		flags |= flagNull
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
	if e.Keyed {
		dst = append(dst, e.Key...)
	}
	return append(dst, e.Payload...)
}

// HeadSize is how many bytes of what a key holds tell all but an entry's full key and payload.
const HeadSize = headerSize

// Decode reads what a key holds, or the first HeadSize bytes of it, or more. It never fails: what
// it cannot read is Unknown.
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
	case len(b) == leaseSize && b[0] == leaseByte:
		s.Kind = Busy
		s.Token = Token(b[tokenAt:leaseSize])
	case len(b) == leaseSize && b[0] == markByte:
		s.Kind = Held
		s.Token = Token(b[tokenAt:leaseSize])
	case len(b) == 1 && b[0] == failedByte:
		s.Kind = Failed
	}
	return s
}

func appendLease(dst []byte, t Token) []byte {
	return append(append(dst, leaseByte, 0), t[:]...)
}

func appendMark(dst []byte, token string) []byte {
	return append(append(dst, markByte, 0), token...)
}

// newToken draws a token: 96 random bits, so that no two loads of a fleet ever share one.
func newToken() (t Token) {
	rand.Read(t[:]) // never fails (crypto/rand)
	return t
}
