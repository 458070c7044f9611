// Package parking stores changes that a canal.Consumer could not process, so that an operator can
// examine them: in a file (NewFile) or in a table of a database (NewTable). Both implement
// canal.Parking.
package parking

import (
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Parked is a change that a Consumer could not process, or a message that could not be read.
type Parked struct {
	// Binding names the Binding that failed. It is "" for a message that could not be read.
	Binding string

	// Change is the change that was not processed. Message is the message that could not be read.
	Change  event.Change
	Message []byte

	// Reason is the error, and Time is when the Consumer parked the change.
	Reason string
	Time   time.Time

	// Cut is true in a Parked that was read from storage if a part of it was too long to be stored
	// (MaxSize). That part is some values, which are now unknown, or the end of the message.
	Cut bool
}
