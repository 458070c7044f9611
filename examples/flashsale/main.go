// Flashsale sells 100 phones to 1,000 buyers in several processes:
//
//	go run ./examples/flashsale
//
// It first uses the locks of well-known articles, one after the other. Into each sale it injects
// the one fault that the lock does not survive: a crash, a pause or a wrong clock. Then it sells
// with the locks of this library under the same faults. Flashsale needs only Go: Redis and the
// database are embedded, and the processes are copies of this program.
//
// Where to read: articles.go has the locks of the articles, and library.go those of the library.
// shop.go has the purchase, which checks the fencing token. scenarios.go and faults.go define the
// faults; process.go and sale.go run the sales.
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
	redis    string
	only     int
	patience time.Duration
}

func main() {
	if child() {
		return
	}
	c, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program immediately
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "\nflashsale:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("flashsale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.redis, "redis", "",
		"`address` (host:port) of a real Redis, to measure the speed there; its keys are deleted afterwards")
	flags.IntVar(&c.only, "only", 0, "`number` of the only sale to run; 0 runs all")
	flags.DurationVar(&c.patience, "patience", 2*time.Second, "time without a sale after which the buyers leave")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case c.only < 0 || c.only > len(scenarios):
		err = fmt.Errorf("-only: must be from 0 to %d", len(scenarios))
	case c.patience < time.Second:
		err = errors.New("-patience: must be at least 1s")
	}
	if err != nil {
		fmt.Fprintf(stderr, "flashsale: %v (see -help)\n", err)
	}
	return c, err
}

func run(ctx context.Context, c config, out io.Writer) error {
	if err := sales(ctx, c, out); err != nil {
		return err
	}
	if c.only > 0 {
		return nil
	}
	return speeds(ctx, c, out)
}

func sales(ctx context.Context, c config, out io.Writer) error {
	fmt.Fprintf(out, "\n  %d phones, %d buyers in %d processes. The fault of the first buyer's lock, and its "+
		"result:\n\n", pieces, buyers, 1+shops)
	header(out)
	var errs []error
	for i, s := range scenarios {
		if c.only > 0 && c.only != i+1 {
			continue
		}
		got, err := hold(ctx, i, c.patience, false)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		row(out, i+1, got)
		if err := got.holds(); err != nil {
			errs = append(errs, fmt.Errorf("sale %d: unexpected result: %w", i+1, err))
		}
	}
	fmt.Fprint(out, legend)
	return errors.Join(errs...)
}

func speeds(ctx context.Context, c config, out io.Writer) error {
	if c.redis == "" {
		fmt.Fprint(out, "\n  To measure the speed, pass -redis host:port; the embedded Redis is too slow.\n\n")
		return nil
	}
	fmt.Fprintf(out, "\n  Speed if each purchase holds its lock for 2 ms (Redis: %s):\n\n", c.redis)
	var first float64
	lost := 0
	for _, n := range []int{1, manySegments} {
		s, err := measure(ctx, c.redis, measurement{Segments: n, Buyers: 20, Work: 2 * time.Millisecond,
			For: time.Second})
		if err != nil {
			return err
		}
		if n == 1 {
			first = s.perSec
		}
		lost += s.lost
		fmt.Fprintf(out, "  segments: %2d   purchases a second: %5.0f   %4.1f x   lost: %d\n", n, s.perSec,
			s.perSec/first, s.lost)
	}
	fmt.Fprintln(out)
	if lost != 0 {
		return fmt.Errorf("%d purchases were lost", lost)
	}
	return nil
}
