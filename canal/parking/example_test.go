package parking_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// retry gives a handler what was parked of it, once it has been mended, and removes what it takes.
// What was cut, or is of other Bindings, stays where it is.
func retry(
	ctx context.Context, parked *parking.Table, binding string, handler func(context.Context, event.Change) error,
) error {
	for after := int64(0); ; {
		rows, err := parked.List(ctx, after, 100)
		if err != nil || len(rows) == 0 {
			return err
		}
		for _, row := range rows {
			after = row.ID
			if row.Err != nil || row.Parked.Binding != binding || row.Parked.Cut {
				continue
			}
			if err := handler(ctx, row.Parked.Change); err != nil {
				return err
			}
			if _, err := parked.Remove(ctx, row.ID); err != nil {
				return err
			}
		}
	}
}

// A handler that failed is given its changes again.
func ExampleTable() {
	ctx := context.Background()
	db := sqlx.MustOpen("sqlite", "file:parking?mode=memory&cache=shared")
	defer db.Close()
	parked, err := parking.NewTable(db, nil)
	if err != nil {
		panic(err)
	}
	if err := parked.CreateTable(ctx); err != nil { // in a program of yours a migration does: see Schema
		panic(err)
	}

	// A Consumer does this, when its Options.Parking is parked.
	row, err := event.NewRow(event.NewColumns("id", "name"),
		[]event.Value{event.TextValue("7"), event.TextValue("a lamp")})
	if err != nil {
		panic(err)
	}
	change := event.Change{Schema: "shop", Table: "articles", Kind: event.Insert, After: row}
	if err := parked.Park(ctx,
		parking.Parked{Binding: "handler search", Change: change, Reason: "the index is full"}); err != nil {
		panic(err)
	}

	mended := false
	search := func(_ context.Context, c event.Change) error {
		if !mended {
			return errors.New("the index is full")
		}
		fmt.Println("indexed:", c.After.Get("id").Text(), c.After.Get("name").Text())
		return nil
	}
	fmt.Println(retry(ctx, parked, "handler search", search))
	mended = true
	fmt.Println(retry(ctx, parked, "handler search", search))
	left, err := parked.List(ctx, 0, 100)
	fmt.Println(len(left), "left", err)
	// Output:
	// the index is full
	// indexed: 7 a lamp
	// <nil>
	// 0 left <nil>
}

// A file keeps what a Consumer could not do, to be looked at and done later.
func ExampleNewFile() {
	folder, err := os.MkdirTemp("", "canal")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	row, err := event.NewRow(event.NewColumns("id", "name"),
		[]event.Value{event.TextValue("43"), event.TextValue("Alan")})
	if err != nil {
		log.Fatal(err)
	}
	file := parking.NewFile(filepath.Join(folder, "parked"))
	err = file.Park(context.Background(),
		parking.Parked{Binding: "search", Change: event.Change{Schema: "shop", Table: "users", Kind: event.Insert,
			After: row}, Reason: "the index is full"})
	if err != nil {
		log.Fatal(err)
	}
	for p, err := range file.Read() {
		fmt.Println(p.Binding, p.Change.After.Get("id").Text(), p.Reason, err)
	}
	// Output: search 43 the index is full <nil>
}
