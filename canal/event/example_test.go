package event_test

import (
	"fmt"
	"log"

	"github.com/cacheaside/cacheaside/canal/event"
)

// A Source of your own makes rows of what it has read. A row that was changed can lack values that
// the log does not repeat. Over takes them from the row before the change.
func ExampleNewRow() {
	columns := event.NewColumns("id", "name", "picture") // once for each table
	id, err := event.ValueOf(int64(42))
	if err != nil {
		log.Fatal(err)
	}
	before, err := event.NewRow(columns,
		[]event.Value{id, event.TextValue("Ann"), event.TextValue("(large)")})
	if err != nil {
		log.Fatal(err)
	}
	after, err := event.NewRow(columns, []event.Value{id, event.TextValue("Anne"), event.Omitted()})
	if err != nil {
		log.Fatal(err)
	}
	change := event.Change{Schema: "shop", Table: "users", Kind: event.Update, Before: before, After: after}

	fmt.Println(change.After.Get("picture").Known())
	for column, value := range change.After.Over(change.Before).All() {
		fmt.Println(column, value.Text())
	}
	fmt.Println(change.After) // no values
	// Output:
	// false
	// id 42
	// name Anne
	// picture (large)
	// a row of 3 columns
}
