package history

import "encoding/binary"

// Kind is the kind of an operation.
type Kind uint8

// The kinds. A write has a Begin, a Commit if its version is known, and an Invalidate after
// Invalidate has returned nil.
const (
	Get             Kind = iota + 1 // a read through the memory tier
	Fresh                           // a read without the memory tier
	Refresh                         // a read that loads
	Begin                           // before the UPDATE of a write is sent; only has Start
	Commit                          // the write was committed as Version, between Start and End
	Invalidate                      // of a key
	InvalidateAll                   // of all keys
	InvalidateGroup                 // of the group whose number is Key
	Load                            // a call of the load function, which has read Version
	After                           // a read with the token of an invalidation
	Kinds
)

var names = [Kinds]string{"?", "get", "fresh", "refresh", "begin", "write", "invalidate", "invalidate-all",
	"invalidate-group", "load", "after"}

func (k Kind) String() string { return names[min(k, Kinds-1)] }

// Flag is a property of an operation.
type Flag uint8

// The flags.
const (
	Failed      Flag = 1 << iota // it returned an error, so its effect is unknown
	Unvalidated                  // Redis may not have confirmed the value
	Many                         // one key of a GetMany
)

// Op is one operation. Times are those of Now. Version 0 stands for a row that does not exist.
type Op struct {
	Kind      Kind
	Flags     Flag
	Goroutine uint16
	Key       uint32 // of an InvalidateGroup: the group
	Timeout   uint32 // of its context, in microseconds; 0: not checked
	Version   int64
	Start     int64
	End       int64
	Least     int64 // of an After: the version that was written before the invalidation of the token
	Acked     int64 // of an After: when that invalidation had returned nil

	Process int // not stored: each process has its own file
}

// Has reports whether all of the flags are set.
func (o *Op) Has(f Flag) bool { return o.Flags&f == f }

const opSize = 52

func (o *Op) append(b []byte) []byte {
	b = append(b, byte(o.Kind), byte(o.Flags))
	b = binary.LittleEndian.AppendUint16(b, o.Goroutine)
	b = binary.LittleEndian.AppendUint32(b, o.Key)
	b = binary.LittleEndian.AppendUint32(b, o.Timeout)
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Version))
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Start))
	b = binary.LittleEndian.AppendUint64(b, uint64(o.End))
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Least))
	return binary.LittleEndian.AppendUint64(b, uint64(o.Acked))
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
		Least:     int64(binary.LittleEndian.Uint64(b[36:])),
		Acked:     int64(binary.LittleEndian.Uint64(b[44:])),
	}
}
