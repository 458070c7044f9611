package lease

// HeadSize is how many bytes of what a key holds tell all but an entry's full key and payload.
const HeadSize = headerSize

// Decode reads what a key holds, or the first HeadSize bytes of it, or more, for a program that
// only looks. It never fails: what it cannot read is Unknown. Token is that of a lease, or of the
// hold whose mark it is.
func Decode(b []byte) State {
	s := decode(b)
	if s.Kind == Held {
		s.Token = Token(b[tokenAt:leaseSize])
	}
	return s
}
