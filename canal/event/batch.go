// Package event defines what a canal.Source delivers to a Consumer and what handlers receive. A
// Change describes a change of one row, whose columns hold Values.
//
// A Source of your own builds Batches: call NewColumns once for each shape of a table, NewRow for
// each row, and ValueOf for each value.
package event

import (
	"fmt"
	"io"
	"time"
)

// A Position is a point in the log of a Source, in a format that only the Source understands. All
// changes up to it have been delivered, and none after it. The empty Position means none.
type Position string

// A Batch contains changes in the order of their commits: those of one or several transactions,
// or a part of one.
type Batch struct {
	Changes []Change

	// Messages are the messages of Need.Messages that were committed with Changes.
	Messages []Message

	// Position is where to continue after these changes are processed. It is "" inside a
	// transaction, where a Source cannot continue, and for a Source without positions. It is text
	// of at most MaxPosition bytes, because databases store it.
	Position Position

	// Time is the commit time of the last change, or the time at which the Source knew that there
	// was no later change. Zero means unknown.
	Time time.Time

	// Bytes is the approximate memory size of the changes and messages. If it is 0, Size measures
	// their values.
	Bytes int

	// Malformed is a message that could not be read, or nil. The Consumer parks it. Changes then
	// contains what is known in spite of that, such as a Replace of the message's table. If
	// Changes is empty, the message may concern any row, and the Consumer invalidates all keys of
	// all bound loaders.
	Malformed *Malformed

	// Missing lists tables of Need.Tables that do not exist in the database, each with the reason
	// as text for a user. A Source that can check this reports the tables in the first Batch of a
	// Run, and in a later Batch each table that it then finds missing. The Consumer raises an
	// alert, and Health reports the table until a change of it arrives, for example after it was
	// created.
	Missing map[Table]string

	// Incomplete lists tables of Need.Tables whose changes do not all arrive, or arrive without a
	// column that Need.Tables names. The text has the reason, and the statements that repair it,
	// for an operator. nil means that nothing is known to have changed since the last Batch that
	// had Incomplete; a map without tables means that all are complete. The Consumer raises an
	// alert, and Health reports the tables. When changes of a table arrive that did not before, the
	// Source delivers a Replace of it.
	Incomplete map[Table]string

	// Ack, if it is not nil, is called once, when the changes of this Batch and of all earlier
	// ones are processed. It must not block for long.
	Ack func()
}

// Size returns the approximate memory size of the Batch: Bytes, or the size of its values and
// message.
func (b *Batch) Size() (n int) {
	if b.Bytes > 0 && b.Malformed == nil {
		return b.Bytes
	}
	for i := range b.Changes {
		n += b.Changes[i].Before.size() + b.Changes[i].After.size()
	}
	for i := range b.Messages {
		n += len(b.Messages[i].Content)
	}
	if b.Malformed != nil {
		n += len(b.Malformed.Message)
	}
	return n
}

// Malformed is a message that a Source could not read, with the reason.
type Malformed struct {
	Message []byte
	Err     error
}

// A Message was written into the log of the database by a transaction that was committed, for
// example with pg_logical_emit_message. It is not a change of a row.
type Message struct {
	Prefix  string // says for whom it is
	Content []byte // a Source can cut it after 256 KiB
}

// String returns the prefix and the length.
func (m Message) String() string {
	return fmt.Sprintf("message %.70q of %d bytes", m.Prefix, len(m.Content))
}

// Format writes String for every verb and flag, so that the content is never printed.
func (m Message) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, m.String()) }

// Table identifies a table.
type Table struct{ Schema, Name string }

// Need describes the changes that a Consumer needs.
type Need struct {
	// From is the position at which to begin. "" means to begin with the next change.
	From Position

	// Tables lists the tables whose changes are needed, each with the columns that every change
	// must contain to be understood. Changes of other tables need not be delivered.
	Tables map[Table][]string

	// Messages lists the prefixes of the messages that are needed. Only a canal.MessageSource gets
	// some. If it cannot deliver messages that were committed, as when the list was different
	// before, it delivers a Replace of all tables.
	Messages []string
}

// MaxPosition is the maximum length of a Position in bytes. It is a quarter of MariaDB's default
// maximum packet size.
const MaxPosition = 4 << 20
