package canal_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/cacheaside/cacheaside/canal"
)

// retry gives a handler what was parked of it, once it has been mended, and removes what it takes. What was cut, or is of other Bindings, stays where it is.
func retry(ctx context.Context, parking *canal.SQLParking, binding string, handler func(context.Context, canal.Change) error) error {
	for after := int64(0); ; {
		rows, err := parking.List(ctx, after, 100)
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
			if _, err := parking.Remove(ctx, row.ID); err != nil {
				return err
			}
		}
	}
}

// What a handler did not take is given to it again.
func ExampleSQLParking() {
	ctx := context.Background()
	db := sqlx.MustOpen("sqlite", "file:parking?mode=memory&cache=shared")
	defer db.Close()
	parking, err := canal.NewSQLParking(db, nil)
	if err != nil {
		panic(err)
	}
	if err := parking.CreateTable(ctx); err != nil { // in a program of yours a migration does: see Schema
		panic(err)
	}

	// A Consumer does this, when its Options.Parking is parking.
	row, err := canal.NewRow(canal.NewColumns("id", "name"), []canal.Value{canal.TextValue("7"), canal.TextValue("a lamp")})
	if err != nil {
		panic(err)
	}
	change := canal.Change{Schema: "shop", Table: "articles", Kind: canal.Insert, After: row}
	if err := parking.Park(ctx, canal.Parked{Binding: "handler search", Change: change, Reason: "the index is full"}); err != nil {
		panic(err)
	}

	mended := false
	search := func(_ context.Context, c canal.Change) error {
		if !mended {
			return errors.New("the index is full")
		}
		fmt.Println("indexed:", c.After.Get("id").Text(), c.After.Get("name").Text())
		return nil
	}
	fmt.Println(retry(ctx, parking, "handler search", search))
	mended = true
	fmt.Println(retry(ctx, parking, "handler search", search))
	left, err := parking.List(ctx, 0, 100)
	fmt.Println(len(left), "left", err)
	// Output:
	// the index is full
	// indexed: 7 a lamp
	// <nil>
	// 0 left <nil>
}
