// Package event is what a canal.Source tells a Consumer, and what handlers get of it: a Change is
// what was done to one row, whose columns hold Values.
//
// A Source of your own makes Batches of them: NewColumns once for each shape of a table, NewRow for
// each row, ValueOf for each value.
package event

import "time"

// Position is where a Source stands, in words of its own. The zero Position is none. The changes
// after it, and none before, are still to be read.
type Position string

// Batch is changes in the order in which they were committed: of one transaction, of several, or of
// a part of one.
type Batch struct {
	Changes []Change

	// Position is where to go on when the changes are done. None: in the midst of a transaction,
	// where nobody can go on, or with a Source that has no positions. At most MaxPosition bytes, of
	// text, for databases keep it.
	Position Position

	// Time is the commit of the last change, or when the Source knew that there was no later one.
	// Zero: not known.
	Time time.Time

	// Bytes is about how much memory the changes take. 0: not known; then their values are
	// measured.
	Bytes int

	// Malformed is what could not be read: it is parked. Changes are then what is known
	// nevertheless, as that all of its table may have changed; if there are none, it may have been
	// a change of any row, and all keys of all bound loaders are invalidated. nil: there is none.
	Malformed *Malformed

	// Missing are tables of Need.Tables that the database does not have, each with how that is
	// known, as people read it. A Source that can look says so in the first Batch of a Run, and
	// when it learns it later. The Consumer alerts it, and Health reports it until a change of the
	// table comes, as when it is created.
	Missing map[Table]string

	// Ack, if there is one, is called once, when all of it is done and what was before it. It must
	// not block for long.
	Ack func()
}

// Size is Bytes, or about that, if it is not known.
func (b *Batch) Size() (n int) {
	if b.Bytes > 0 && b.Malformed == nil {
		return b.Bytes
	}
	for i := range b.Changes {
		n += b.Changes[i].Before.size() + b.Changes[i].After.size()
	}
	if b.Malformed != nil {
		n += len(b.Malformed.Message)
	}
	return n
}

// Malformed is a message that a Source could not read.
type Malformed struct {
	Message []byte
	Err     error
}

// Table names a table.
type Table struct{ Schema, Name string }

// Need is what a Consumer wants to hear of.
type Need struct {
	// From is where to begin. None: from now on.
	From Position

	// Tables are those whose changes matter, each with the columns without which a change of it
	// cannot be understood. Others need not be delivered.
	Tables map[Table][]string
}

// MaxPosition is the maximum length of a Position in bytes: a quarter of what MariaDB takes in one
// packet by default.
const MaxPosition = 4 << 20
