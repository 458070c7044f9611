// Package parking keeps what a canal.Consumer could not do, for somebody to look at: in a file
// (NewFile) or in a table of a database (NewTable). Each is a canal.Parking.
package parking

import (
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Parked is what a Consumer could not do: a change, or a message that cannot be read.
type Parked struct {
	// Binding is whose it is; "" of a message that could not be read.
	Binding string

	// Change is what was to be done, or Message what could not be read.
	Change  event.Change
	Message []byte

	// Reason is why, and Time when it was given up.
	Reason string
	Time   time.Time

	// Cut tells, of one that was read again, that some of it was too long to be kept (MaxSize):
	// columns that are not known, or the end of the message.
	Cut bool
}
