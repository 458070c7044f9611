package bloom

import "math/bits"

// hash is all that a filter knows of a key: the four base hashes of bits-and-blooms/bloom,
// MurmurHash3 x64 128 (Appleby, public domain) of the key and of the key with a byte 1 behind it.
// They are the same in every process and version.
type hash [4]uint64

// location is bloom.Locations of bits-and-blooms, one of them: Kirsch and Mitzenmacher, "Less
// Hashing, Same Performance", with two pairs of hashes.
func (h *hash) location(i uint64) uint64 { return h[i&1] + i*h[2+(i+i&1)&3>>1] }

const (
	c1 = 0x87c37b91114253d5
	c2 = 0x4cf5ad432745937f
)

// hashOf allocates nothing. It is most of what a lookup takes, and so branches little.
func hashOf(key string) (h hash) {
	var h1, h2 uint64
	n := uint64(len(key))
	rest := key
	for ; len(rest) >= 16; rest = rest[16:] {
		h1, h2 = block(h1, h2, word(rest), word(rest[8:]))
	}
	k1, k2 := tail(key, rest)
	x1, x2 := h1^scramble1(k1), h2^scramble2(k2)
	h[0], h[1] = finish(x1^n, x2^n)
	one := uint64(1) << (8 * (n & 7))
	switch left := n & 15; {
	case left < 8:
		x1 = h1 ^ scramble1(k1|one)
	case left < 15:
		x2 = h2 ^ scramble2(k2|one)
	default:
		x1, x2 = block(h1, h2, k1, k2|one)
	}
	h[2], h[3] = finish(x1^(n+1), x2^(n+1))
	return h
}

// hashesOf returns the hash of each of keys.
func hashesOf(keys []string) []hash {
	hashes := make([]hash, len(keys))
	for i, key := range keys {
		hashes[i] = hashOf(key)
	}
	return hashes
}

func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// tail is what is left of a key behind its blocks of 16 bytes, with zeros behind it. The last bytes
// of a key are read as one word, and what stands before them shifted out.
func tail(key, rest string) (k1, k2 uint64) {
	n := len(rest)
	switch {
	case n > 8:
		return word(rest), word(rest[n-8:]) >> (8 * (16 - n) & 63)
	case n == 8:
		return word(rest), 0
	case n == 0:
		return 0, 0
	case len(key) >= 8:
		return word(key[len(key)-8:]) >> (8 * (8 - n) & 63), 0
	default:
		return short(rest), 0
	}
}

// short is a word of at most seven bytes.
func short(s string) uint64 {
	switch n := len(s); {
	case n >= 4:
		return uint64(half(s)) | uint64(half(s[n-4:]))>>(8*(8-n)&63)<<32
	case n == 0:
		return 0
	default: // some of one to three are the same
		return uint64(s[0]) | uint64(s[n/2])<<(8*(n/2)&63) | uint64(s[n-1])<<(8*(n-1)&63)
	}
}

func half(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// of zero it is zero
func scramble1(k uint64) uint64 { return bits.RotateLeft64(k*c1, 31) * c2 }
func scramble2(k uint64) uint64 { return bits.RotateLeft64(k*c2, 33) * c1 }

func block(h1, h2, k1, k2 uint64) (uint64, uint64) {
	h1 = (bits.RotateLeft64(h1^scramble1(k1), 27)+h2)*5 + 0x52dce729
	h2 = (bits.RotateLeft64(h2^scramble2(k2), 31)+h1)*5 + 0x38495ab5
	return h1, h2
}

func finish(h1, h2 uint64) (uint64, uint64) {
	h1 += h2
	h2 += h1
	h1, h2 = mix(h1), mix(h2)
	h1 += h2
	return h1, h2 + h1
}

func mix(k uint64) uint64 {
	k = (k ^ k>>33) * 0xff51afd7ed558ccd
	k = (k ^ k>>33) * 0xc4ceb9fe1a85ec53
	return k ^ k>>33
}
