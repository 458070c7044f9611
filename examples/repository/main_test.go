package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/goleak"

	"github.com/cacheaside/cacheaside"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const account = `1. At the start the 100 most popular products are warmed.
    50 of 100
   100 of 100
   => SQL queries: 3, rows asked for: 100, answers from memory or Redis: 0

2. A list of five, twice: two are warm, one does not exist.
   found [99 100 101 102]
   => SQL queries: 1, rows asked for: 3, answers from memory or Redis: 2

   found [99 100 101 102]
   => SQL queries: 0, rows asked for: 0, answers from memory or Redis: 5

3. That one is created. That it did not exist was cached, but is no more.
   no such product; then "Lantern"
   => SQL queries: 1, rows asked for: 1, answers from memory or Redis: 1

4. A page is read by two callers; the first one changes its copy.
   Lamp 1: map[colour:copper seen:yes] and map[colour:copper]
   => SQL queries: 1, rows asked for: 1, answers from memory or Redis: 1

5. Its product is renamed: both are read anew.
   Night light, and on the page Night light
   => SQL queries: 2, rows asked for: 2, answers from memory or Redis: 0

6. The database fails. What is cached is found; the rest fails, and is not asked for again within ErrorTTL.
   found [1 2]
   150: cacheaside: get product key#7cace694c14cbc50: SQL logic error: no such table: products (1)
   => SQL queries: 1, rows asked for: 1, answers from memory or Redis: 2

   found [1 2]
   150: cacheaside: get product key#7cace694c14cbc50: a load of this key failed a moment ago
   => SQL queries: 0, rows asked for: 0, answers from memory or Redis: 2

7. Another process starts. What is in Redis is not loaded again.
    50 of 100
   100 of 100
   => SQL queries: 1, rows asked for: 0, answers from memory or Redis: 0

`

func TestAccount(t *testing.T) {
	server := miniredis.RunT(t)
	var out bytes.Buffer
	if err := run(t.Context(), server.Addr(), &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != account {
		t.Errorf("it tells:\n%s", out.String())
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(line) > 110 {
			t.Errorf("a long line: %s", line)
		}
	}
	if left := server.Keys(); len(left) > 0 {
		t.Errorf("left in Redis: %q", left)
	}
}

// A rename that Redis does not learn of is done and says so; the old name goes when Invalidate has succeeded.
func TestRenameWhileRedisFails(t *testing.T) {
	server := miniredis.RunT(t)
	rdb := openRedis(server.Addr())
	defer rdb.Close()
	db, err := openDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	cache, err := cacheaside.New(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	p, err := NewProducts(cache, db)
	if err != nil {
		t.Fatal(err)
	}
	name := func(want string) {
		t.Helper()
		if product, err := p.ByID(t.Context(), 7); product.Name != want || err != nil {
			t.Errorf("%q, %v; want %q", product.Name, err, want)
		}
	}
	name("Lamp 7")
	server.SetError("ERR out of order")
	if err := p.Rename(t.Context(), 7, "Torch"); !errors.Is(err, ErrStale) || !errors.Is(err, cacheaside.ErrRedis) {
		t.Error(err)
	}
	name("Torch") // from the database
	server.SetError("")
	name("Lamp 7") // from Redis
	if err := p.Invalidate(t.Context(), 7); err != nil {
		t.Error(err)
	}
	name("Torch")

	if err := p.Create(t.Context(), Product{ID: 7}); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("created twice: %v", err)
	}
	if err := run(t.Context(), "127.0.0.1:1", &bytes.Buffer{}); err == nil {
		t.Error("no Redis, and no error")
	}
}
