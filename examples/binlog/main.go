// Binlog shows how an UPDATE in the mariadb client, made without the library, arrives in the caches
// of several processes. It needs the package mariadb-server, but no configuration:
//
//	go -C examples/binlog run .
//
// It starts its own server in a temporary folder and runs for some seconds. With -follow it keeps
// running, so that you can change rows yourself. With -postgres it uses a PostgreSQL of yours, the
// psql client, and logical replication.
//
// wiring.go has the code that a program needs. This file has the steps of the demonstration,
// operator.go changes rows, watch.go measures when changes arrive, server.go and postgres.go have
// the servers, and shop.go has the table.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
)

func main() {
	c, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "\nbinlog:", err)
		if ctx.Err() != nil {
			os.Exit(130) // the exit code of a program that Ctrl-C has ended
		}
		os.Exit(1)
	}
}

// story runs the steps of the demonstration.
type story struct {
	out      io.Writer
	server   *server
	operator *operator
	fleet    []*process
	alone    *process // without a Consumer
	follower
}

// run runs all steps and removes everything that it has created, also when ctx ends.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the cause of any other error
		}
	}()
	server, err := open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.close(ctx)) }()
	redis, err := openRedis(ctx, c.redis)
	if err != nil {
		return err
	}
	prefix := "cacheaside-binlog-" + rand.Text() // separates this run from others
	defer func() { err = errors.Join(err, redis.close(ctx, prefix)) }()

	s := &story{out: out, server: server, operator: newOperator(server)}
	for _, suffix := range []string{"", "", "", "-alone"} {
		rdb := redis.client()
		defer rdb.Close()
		p, err := newProcess(rdb, server.shop, prefix+suffix)
		if err != nil {
			return err
		}
		defer p.close()
		s.fleet = append(s.fleet, p)
	}
	s.fleet, s.alone = s.fleet[:3], s.fleet[3]
	s.follower = follower{changes: make(chan event.Change), fail: fail}
	source, err := server.source()
	if err != nil {
		return err
	}
	if s.consumer, err = s.fleet[0].newConsumer(server.DB, source, server.schema, s.take); err != nil {
		return err
	}
	s.start(ctx)
	defer s.stop()
	if err := s.listening(ctx); err != nil {
		return err
	}

	s.say("%d products, in %s at %s.\nThree processes cache them, with %s, and follow %s.\nA fourth process has "+
		"separate entries, a TTL of an hour, and no Consumer.\nTimes are measured from when another session can read "+
		"the new row in the database.\n", rows, server.version, server.addr, redis, server.log)
	for _, step := range []func(context.Context) error{s.price, s.sku, s.insert, s.bulk, s.alter, s.restart, s.health} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if c.follow {
		return s.follow(ctx)
	}
	return nil
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// cache reads in all four processes, so that the rows are cached.
func (s *story) cache(read func(p *process) error) error {
	for _, p := range append(s.fleet[:3:3], s.alone) {
		if err := read(p); err != nil && !missing(err) {
			return err
		}
	}
	return nil
}

// change executes statements as the operator, and returns how long the three caches took to show
// the change.
func (s *story) change(ctx context.Context, is seen, statements ...string) (string, error) {
	for _, sql := range statements {
		s.say("     %s", sql)
	}
	took, err := watch(ctx, s.server, s.fleet,
		func(ctx context.Context) error { return s.operator.do(ctx, statements...) }, is)
	return after(took), err
}

func (s *story) price(ctx context.Context) error {
	s.say("1. %s changes a price:", s.operator)
	var old product
	err := s.cache(func(p *process) (err error) { old, err = p.product(ctx, 1); return err })
	if err != nil {
		return err
	}
	took, err := s.change(ctx, priced(1, "9.99"), "UPDATE products SET price = 9.99 WHERE id = 1")
	if err != nil {
		return err
	}
	still, err := s.alone.product(ctx, 1)
	s.say("   The caches had %s. They serve 9.99 after %s; the fourth process still serves %s.\n", old.Price, took,
		still.Price)
	return err
}

func (s *story) sku(ctx context.Context) error {
	s.say("2. A SKU changes. It is the key of another loader, which has cached both the old and the new SKU:")
	for _, sku := range []string{"LAMP-1", "LANTERN-1"} {
		if err := s.cache(func(p *process) error { _, err := p.idOf(ctx, sku); return err }); err != nil {
			return err
		}
	}
	took, err := s.change(ctx, all(named("LANTERN-1", 1), named("LAMP-1", 0)),
		"UPDATE products SET sku = 'LANTERN-1' WHERE id = 1")
	if err != nil {
		return err
	}
	still, err := s.alone.idOf(ctx, "LAMP-1")
	s.say("   LANTERN-1 is found, LAMP-1 is not, after %s; in the fourth LAMP-1 is still product %d.\n", took, still)
	return err
}

func (s *story) insert(ctx context.Context) error {
	s.say("3. A product is inserted that was read before it existed:")
	refused := int64(0)
	err := s.cache(func(p *process) error { _, err := p.idOf(ctx, "TENT-1"); return err })
	if err != nil {
		return err
	}
	if err := s.cache(func(p *process) error { _, err := p.product(ctx, rows+1); return err }); err != nil {
		return err
	}
	for _, p := range s.fleet {
		refused += p.products.Stats().Filtered
	}
	took, err := s.change(ctx, all(priced(rows+1, "89.00"), named("TENT-1", rows+1)),
		fmt.Sprintf("INSERT INTO products VALUES (%d, 'green', 'TENT-1', 'Tent', 89)", rows+1))
	if err != nil {
		return err
	}
	if _, err := s.alone.idOf(ctx, "TENT-1"); !missing(err) {
		return cmp.Or(err, errors.New("the fourth process found the tent"))
	}
	s.say("   The Bloom whitelist had refused its id (%d times), and the absence of its SKU was cached.\n   Reads by "+
		"both find it after %s; in the fourth process it still does not exist.\n", refused, took)
	return nil
}

func (s *story) bulk(ctx context.Context) error {
	s.say("4. One statement changes all prices. The caches have every 100th of these rows:")
	ids := popular()
	var before map[int64]product
	err := s.cache(func(p *process) (err error) { before, err = p.products.GetMany(ctx, ids); return err })
	if err != nil {
		return err
	}
	old := func(p *process) (n int, err error) {
		now, err := p.products.GetMany(ctx, ids)
		for id, p := range now {
			if p.Price == before[id].Price {
				n++
			}
		}
		return n, err
	}
	took, err := s.change(ctx, func(ctx context.Context, c catalog) (bool, error) {
		last, err := c.product(ctx, rows)
		if err != nil || last.Price == before[rows].Price {
			return false, err
		}
		p, ok := c.(*process)
		if !ok { // the database shows all rows or none
			return true, nil
		}
		n, err := old(p)
		return n == 0, err
	}, fmt.Sprintf("UPDATE products SET price = price + 1 WHERE id <= %d", rows))
	if err != nil {
		return err
	}
	n, err := old(s.alone)
	s.say("   None of the %d is old after %s, loads included; in the fourth process %d are.\n", len(ids), took, n)
	return err
}

func (s *story) alter(ctx context.Context) error {
	s.say("5. A column is dropped between two changes of rows, so later columns move in the log:")
	err := s.cache(func(p *process) error { _, err := p.idOf(ctx, "LAMP-2"); return err })
	if err != nil {
		return err
	}
	took, err := s.change(ctx, all(priced(2, "5.55"), named("LANTERN-2", 2), named("LAMP-2", 0)),
		"UPDATE products SET price = 5.55 WHERE id = 2", "ALTER TABLE products DROP COLUMN colour",
		"UPDATE products SET sku = 'LANTERN-2' WHERE id = 2")
	if err != nil {
		return err
	}
	s.say("   The caches show all of it after %s.\n", took)
	return nil
}

func (s *story) restart(ctx context.Context) error {
	s.say("6. The Consumer is stopped, as in a deployment, while rows change:")
	s.stop()
	err := s.cache(func(p *process) error { _, err := p.product(ctx, 3); return err })
	if err != nil {
		return err
	}
	if err := s.cache(func(p *process) error { _, err := p.idOf(ctx, "LAMP-3"); return err }); err != nil {
		return err
	}
	statements := []string{"UPDATE products SET price = 3.33 WHERE id = 3",
		"UPDATE products SET sku = 'LANTERN-3' WHERE id = 3"}
	if err := s.operator.do(ctx, statements...); err != nil {
		return err
	}
	for _, sql := range statements {
		s.say("     %s", sql)
	}
	old, err := s.fleet[0].product(ctx, 3)
	if err != nil {
		return err
	}
	saved := s.consumer.Stats().Saved
	took, err := watch(ctx, s.server, s.fleet, func(context.Context) error { s.start(ctx); return nil },
		all(priced(3, "3.33"), named("LANTERN-3", 3), named("LAMP-3", 0)))
	if err != nil {
		return err
	}
	s.say("   The caches still have %s. The Consumer continues from its checkpoint,\n   %s.\n   The caches are up to "+
		"date %s after its start.\n", old.Price, saved, after(took))
	return nil
}

func (s *story) health(ctx context.Context) error {
	stats := s.consumer.Stats()
	s.say("7. The Consumer's Stats: %d changes, %d passed to the handler, not understood: %d, parked: %d,\n   "+
		"positions lost: %d, failures: %d,\n   position %s.", stats.Changes, stats.Handled, stats.Misunderstood,
		stats.Parked, stats.PositionsLost, stats.Failures, stats.Position)
	for since := time.Now(); ; {
		err := s.consumer.Health(5 * time.Second)
		if err == nil {
			break
		}
		if time.Since(since) > patience { // failures are retried
			return err
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	s.say("   Health: no error.\n")
	return ctx.Err()
}
