package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	_ "modernc.org/sqlite"             // the driver "sqlite"
)

// product is a row of the table.
type product struct {
	ID          int64  `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
	Cents       int64  `json:"cents"`
}

// errNoProduct is returned for a product that does not exist.
var errNoProduct = errors.New("no such product")

// loadFunc reads a product from the database. The library calls it on a miss.
type loadFunc = func(ctx context.Context, id int64) (product, error)

// database has the products: SQLite in a temporary folder, MariaDB or MySQL.
type database struct {
	*sql.DB
	name   string
	table  string
	folder string    // of SQLite's file; empty for a server
	read   *sql.Stmt // set by fill
	reads  atomic.Int64
}

func openDatabase(ctx context.Context, dsn string) (*database, error) {
	d := &database{name: "MySQL or MariaDB", table: "cacheaside_quickstart_" + unique()}
	driver, connections := "mysql", 32
	if dsn == "" {
		folder, err := os.MkdirTemp("", "cacheaside-quickstart-")
		if err != nil {
			return nil, err
		}
		file := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(filepath.Join(folder, "shop.db")),
			RawQuery: url.Values{
				"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(NORMAL)"},
			}.Encode()}
		d.name, d.folder = "SQLite", folder
		driver, dsn, connections = "sqlite", file.String(), 4
	}
	var err error
	if d.DB, err = sql.Open(driver, dsn); err != nil {
		return nil, fmt.Errorf("the database: %w", err)
	}
	d.SetMaxOpenConns(connections)
	d.SetMaxIdleConns(connections)
	if err := d.PingContext(ctx); err != nil {
		err = errors.Join(fmt.Errorf("the database: %w", err), d.Close())
		if d.folder != "" {
			err = errors.Join(err, os.RemoveAll(d.folder))
		}
		return nil, err
	}
	return d, nil
}

func (d *database) String() string { return d.name }

// close drops the table and removes the folder.
func (d *database) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var errs []error
	if d.folder == "" {
		_, err := d.ExecContext(ctx, "DROP TABLE IF EXISTS "+d.table)
		errs = append(errs, err)
	}
	errs = append(errs, d.Close())
	if d.folder != "" {
		errs = append(errs, os.RemoveAll(d.folder))
	}
	return errors.Join(errs...)
}

// fill creates the table with a row for each id, the same in every run. Call it before any query.
func (d *database) fill(ctx context.Context, ids []int64) error {
	_, err := d.ExecContext(ctx,
		"CREATE TABLE "+d.table+" (id INTEGER PRIMARY KEY, name VARCHAR(60), description VARCHAR(400), cents BIGINT)")
	if err != nil {
		return err
	}
	tx, err := d.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // has no effect after Commit
	random := mathrand.New(mathrand.NewPCG(2013, 12))
	for chunk := range slices.Chunk(ids, 100) {
		places := strings.TrimSuffix(strings.Repeat("(?,?,?,?),", len(chunk)), ",")
		values := make([]any, 0, 4*len(chunk))
		for _, id := range chunk {
			p := invent(id, random)
			values = append(values, p.ID, p.Name, p.Description, p.Cents)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+d.table+" (id, name, description, cents) VALUES "+places,
			values...); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	d.read, err = d.PrepareContext(ctx, "SELECT name, description, cents FROM "+d.table+" WHERE id = ?")
	return err
}

// product reads a row. It returns sql.ErrNoRows if the row does not exist, which the library
// understands.
func (d *database) product(ctx context.Context, id int64) (product, error) {
	d.reads.Add(1)
	p := product{ID: id}
	err := d.read.QueryRowContext(ctx, id).Scan(&p.Name, &p.Description, &p.Cents)
	return p, err
}

func (d *database) setPrice(ctx context.Context, id, cents int64) error {
	_, err := d.ExecContext(ctx, "UPDATE "+d.table+" SET cents = ? WHERE id = ?", cents, id)
	return err
}

var (
	adjectives = []string{"Quiet", "Sturdy", "Light", "Winter", "Folding", "Striped", "Warm", "Little", "Plain",
		"Copper"}
	nouns = []string{"lamp", "kettle", "blanket", "chair", "lantern", "basket", "radio", "scarf", "clock", "teapot"}
)

func invent(id int64, random *mathrand.Rand) product {
	name := adjectives[random.IntN(len(adjectives))] + " " + nouns[random.IntN(len(nouns))]
	return product{
		ID:          id,
		Name:        name,
		Description: strings.Repeat(name+", made to last. ", 8),
		Cents:       99 + 100*random.Int64N(200),
	}
}

// unique returns letters and digits that are unique to this run.
func unique() string { return strings.ToLower(rand.Text()[:10]) }
