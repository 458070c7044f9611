// Quickstart shows what the library does. It takes about ten seconds and only needs Go:
//
//	go run ./examples/quickstart
//
// It replays the requests of a real web shop through four caches, which stand for four processes.
// They share one Redis and one database, both embedded. Then it runs six classic failures of
// caching, each without and with the library.
//
// shop.go uses the library. naive.go is a cache without it. replay.go and failures.go have the
// programs that run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type config struct {
	redis      string // host:port; empty: embedded
	mysql      string // a DSN; empty: SQLite
	goroutines int
	caches     int
	accesses   int // 0: all
}

const usage = `Quickstart replays 95,607 real requests for product pages through several caches over one Redis
and one database, and shows which tier served them. Then it runs six classic failures of caching,
each without and with the library. It needs nothing but Go: Redis and the database are embedded.

Usage:  go run ./examples/quickstart [flags]

`

const examples = `
Examples:
  go run ./examples/quickstart -accesses 20000 -caches 2
  go run ./examples/quickstart -redis 127.0.0.1:6379
  go run ./examples/quickstart -mysql 'user:password@tcp(127.0.0.1:3306)/test'

What it makes on a server of yours has names of its own, and is removed at the end, also after Ctrl-C.
`

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
		fmt.Fprintln(os.Stderr, "\nquickstart:", err)
		if ctx.Err() != nil {
			os.Exit(130) // the exit code of a program that Ctrl-C has ended
		}
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.redis, "redis", "", "`address` (host:port) of a real Redis to use instead of the embedded one")
	flags.StringVar(&c.mysql, "mysql", "", "`DSN` of a real MariaDB or MySQL to use instead of the embedded SQLite")
	flags.IntVar(&c.goroutines, "goroutines", 64, "number of concurrent requests")
	flags.IntVar(&c.caches, "caches", 4, "number of caches, each of which stands for a process")
	flags.IntVar(&c.accesses, "accesses", 0, "number of accesses of the trace to replay; 0 means all")
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
		fmt.Fprint(stderr, examples)
	}
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case c.goroutines < 1 || c.caches < 1:
		err = errors.New("-goroutines and -caches: at least 1")
	case c.accesses < 0:
		err = errors.New("-accesses: 0 or more")
	}
	if err != nil {
		fmt.Fprintf(stderr, "quickstart: %v (see -help)\n", err)
	}
	return c, err
}

// run runs everything, and removes all that it has created, also when ctx ends.
func run(ctx context.Context, c config, stdout io.Writer) (err error) {
	out := newReport(stdout)
	started := time.Now()

	trace, err := readTrace(c.accesses)
	if err != nil {
		return err
	}
	server, err := openRedis(ctx, c.redis)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.close(context.WithoutCancel(ctx))) }()
	db, err := openDatabase(ctx, c.mysql)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(context.WithoutCancel(ctx))) }()
	fleet, err := newFleet(c, server, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.close()) }()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the cause of any other error
		}
	}()

	out.title(fmt.Sprintf("%d caches over one Redis (%s) and one database (%s)", c.caches, server, db))
	ids := trace.products()
	if err := out.step("Filling the product table", nil, func() error { return db.fill(ctx, ids) }); err != nil {
		return err
	}

	r := newReplay(trace)
	text := fmt.Sprintf("Replaying %s requests with %d goroutines", thousands(len(trace.accesses)), c.goroutines)
	if err := out.step(text, r.percent, func() error { return r.run(ctx, fleet) }); err != nil {
		return err
	}
	if err := server.clear(ctx); err != nil {
		return err
	}
	server.startClock() // the replay does not need it, but in the failures keys expire
	failures, err := failOnPurpose(ctx, out, fleet, ids)
	if err != nil {
		return err
	}

	out.replay(r)
	out.failures(failures)
	out.line("Done in " + seconds(time.Since(started)) + ".")
	return r.check()
}

// failOnPurpose runs each of the classic failures.
func failOnPurpose(ctx context.Context, out *report, fleet *fleet, ids []int64) (failures []failure, err error) {
	for _, f := range classics {
		err := out.step("Failing on purpose: "+f.name, nil, func() error {
			result, err := f.run(ctx, fleet, ids)
			failures = append(failures, result)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return failures, nil
}
