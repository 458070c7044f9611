package conn

import (
	"strconv"
	"strings"
)

// Ranges is the number of equal parts into which the slots of a cluster are divided. State that
// is kept for many keys together is kept for each range, so that the loss of one server affects
// only its own ranges.
const Ranges = 16

const slots = 1 << 14

// Tag returns a hash tag for a key that must be in the middle of range r.
func Tag(r int) string { return tags[r] }

var tags = func() (tags [Ranges]string) {
	const size = slots / Ranges
	for n, found := 0, 0; found < Ranges; n++ {
		tag := strconv.Itoa(n)
		n := slot(tag)
		if r := n / size; tags[r] == "" && n%size >= size*3/8 && n%size < size*5/8 {
			tags[r] = tag
			found++
		}
	}
	return tags
}()

// slot returns the slot of a key (Redis cluster specification, "Hash tags"): the CRC16 of the
// text between the first "{" and the next "}", or of the whole key if there is no such text.
func slot(key string) int {
	crc := uint16(0)
	for _, b := range []byte(tag(key)) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^b]
	}
	return int(crc) % slots
}

// tag returns the part of a key that determines its slot.
func tag(key string) string {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if n := strings.IndexByte(key[open+1:], '}'); n > 0 {
			return key[open+1 : open+1+n]
		}
	}
	return key
}

// crc16 is the table of CRC-16/XMODEM: polynomial 0x1021, initial value 0.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()
