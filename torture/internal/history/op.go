package history

import "encoding/binary"

// Kind is what a process did.
type Kind uint8

// The kinds. A write is a Begin, a Commit when its version is known, and an Invalidate when that
// has returned nil.
const (
	Get           Kind = iota + 1 // a read through the memory tier
	Fresh                         // a read past it
	Refresh                       // a read that loads
	Begin                         // a write's UPDATE is about to be sent; Start only
	Commit                        // it has been committed, as Version, some time from Start to End
	Invalidate                    // of a key
	InvalidateAll                 // of all keys
	Load                          // a call of the load function, which has read Version
	Kinds
)

var names = [Kinds]string{"?", "get", "fresh", "refresh", "begin", "write", "invalidate", "invalidate-all", "load"}

func (k Kind) String() string { return names[min(k, Kinds-1)] }

// Flag is what else there is to say of an operation.
type Flag uint8

// The flags.
const (
	Failed      Flag = 1 << iota // it returned an error: nothing can be said of its effect
	Unvalidated                  // Redis may not have confirmed what was read
	Many                         // one key of a GetMany
)

// Op is one operation. Times are those of Now. A row that is not there is read as version 0.
type Op struct {
	Kind      Kind
	Flags     Flag
	Goroutine uint16
	Key       uint32
	Timeout   uint32 // of its context, in microseconds; 0: none that is checked
	Version   int64
	Start     int64
	End       int64

	Process int // not written: each process has its own file
}

// Has tells whether all of the flags are set.
func (o *Op) Has(f Flag) bool { return o.Flags&f == f }

const opSize = 36

func (o *Op) append(b []byte) []byte {
	b = append(b, byte(o.Kind), byte(o.Flags))
	b = binary.LittleEndian.AppendUint16(b, o.Goroutine)
	b = binary.LittleEndian.AppendUint32(b, o.Key)
	b = binary.LittleEndian.AppendUint32(b, o.Timeout)
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Version))
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Start))
	return binary.LittleEndian.AppendUint64(b, uint64(o.End))
}

func decode(b []byte) Op {
	return Op{
		Kind:      Kind(b[0]),
		Flags:     Flag(b[1]),
		Goroutine: binary.LittleEndian.Uint16(b[2:]),
		Key:       binary.LittleEndian.Uint32(b[4:]),
		Timeout:   binary.LittleEndian.Uint32(b[8:]),
		Version:   int64(binary.LittleEndian.Uint64(b[12:])),
		Start:     int64(binary.LittleEndian.Uint64(b[20:])),
		End:       int64(binary.LittleEndian.Uint64(b[28:])),
	}
}
