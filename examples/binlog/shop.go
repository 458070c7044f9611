package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/parking"
)

// rows is the number of products, with ids from 1.
const rows = 10_000

type product struct {
	ID    int64
	SKU   string
	Name  string
	Price string
}

// catalog looks up products: a process through its caches, or the database itself.
type catalog interface {
	product(ctx context.Context, id int64) (product, error)
	idOf(ctx context.Context, sku string) (int64, error)
}

// missing reports whether err says that the row does not exist.
func missing(err error) bool {
	return errors.Is(err, cacheaside.ErrNotFound) || errors.Is(err, sql.ErrNoRows)
}

func (p *process) product(ctx context.Context, id int64) (product, error) {
	return p.products.Get(ctx, id)
}
func (p *process) idOf(ctx context.Context, sku string) (int64, error) { return p.ids.Get(ctx, sku) }

// popular returns the ids of frequently read products: every 100th.
func popular() (ids []int64) {
	for id := int64(100); id <= rows; id += 100 {
		ids = append(ids, id)
	}
	return ids
}

// shop is the database. Its methods are the load functions.
type shop struct{ *sqlx.DB }

func (s shop) load(ctx context.Context, ids []int64) (map[int64]product, error) {
	query, args, err := sqlx.In("SELECT id, sku, name, price FROM products WHERE id IN (?)", ids)
	if err != nil {
		return nil, err
	}
	var found []product
	if err := s.SelectContext(ctx, &found, s.Rebind(query), args...); err != nil {
		return nil, err
	}
	byID := make(map[int64]product, len(found))
	for _, p := range found {
		byID[p.ID] = p
	}
	return byID, nil
}

func (s shop) idOf(ctx context.Context, sku string) (id int64, err error) {
	err = s.GetContext(ctx, &id, s.Rebind("SELECT id FROM products WHERE sku = ?"), sku)
	return id, err
}

func (s shop) product(ctx context.Context, id int64) (product, error) {
	found, err := s.load(ctx, []int64{id})
	if err == nil && len(found) == 0 {
		err = sql.ErrNoRows
	}
	return found[id], err
}

// SKUs are compared by bytes, as in the caches: see canal.TextColumn.
const schema = `CREATE TABLE products (
	id BIGINT PRIMARY KEY,
	colour VARCHAR(20) NOT NULL,
	sku VARCHAR(40) %s NOT NULL UNIQUE,
	name VARCHAR(200) NOT NULL,
	price DECIMAL(8,2) NOT NULL)`

// fill creates the tables. In production, create those of the library in a migration: see their
// Schema.
func (s shop) fill(ctx context.Context, collation string) error {
	checkpoint, err := canal.NewSQLCheckpoint(s.DB, nil)
	if err != nil {
		return err
	}
	parking, err := parking.NewTable(s.DB, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(checkpoint.CreateTable(ctx), parking.CreateTable(ctx)); err != nil {
		return err
	}
	if _, err := s.ExecContext(ctx, fmt.Sprintf(schema, collation)); err != nil {
		return err
	}
	for first := 1; first <= rows; first += 1000 {
		var values []string
		for id := first; id < first+1000; id++ {
			values = append(values, fmt.Sprintf("(%d, 'copper', 'LAMP-%d', 'Lamp %d', %d)", id, id, id, 10+id%90))
		}
		if _, err := s.ExecContext(ctx, "INSERT INTO products VALUES "+strings.Join(values, ", ")); err != nil {
			return err
		}
	}
	return nil
}
