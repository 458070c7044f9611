// Lab serves a page on which you break a cache and watch:
//
//	go run ./examples/lab
//
// Two systems run side by side under the same traffic: one with the library, one with cache-aside
// as it is often written by hand. The page affects both in the same way: it kills Redis, lets the
// database fail, or sends a thousand callers for one key. Lab only needs Go, and no network.
//
// protected.go uses the library, plain.go is cache-aside by hand, and switches.go has the actions
// of the page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

const usage = `Lab serves a page on which to break a cache, and watch: one made with this library next to one written
by hand. Redis and the database are embedded; nothing is fetched, and only this machine can see the page.

Usage:  go run ./examples/lab [flags]

`

func main() {
	address, c, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2)
	}
	logging.Disable() // Redis fails on purpose; the page shows the effects
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, address, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (address string, c config, err error) {
	c = usual
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&address, "addr", "127.0.0.1:8080",
		"`address` to serve on: 127.0.0.1 or localhost, and a port; if that is taken, the next free one")
	flags.DurationVar(&c.window, "window", usual.window, "the `time` for which the effect of a switch is measured")
	flags.DurationVar(&c.patience, "patience", usual.patience, "the longest `time` that a caller waits")
	flags.DurationVar(&c.redis, "redis-timeout", usual.redis,
		"RedisTimeout of protected: the longest `time` for a command before Redis counts as unreachable")
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return "", c, err
	}
	_, _, wrong := split(address)
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case wrong != nil:
		err = fmt.Errorf("-addr: %w", wrong)
	case c.window < 100*time.Millisecond || c.window > time.Minute:
		err = errors.New("-window: from 100ms to 1m")
	case c.patience < 100*time.Millisecond || c.patience > time.Minute:
		err = errors.New("-patience: from 100ms to 1m")
	case c.redis < 100*time.Millisecond || c.redis > 15*time.Second:
		err = errors.New("-redis-timeout: from 100ms to 15s")
	}
	c.connect = c.patience * 2 / 3
	if err != nil {
		fmt.Fprintf(stderr, "lab: %v (see -help)\n", err)
	}
	return address, c, err
}

// split splits an address of this machine into host and port.
func split(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q: must be host:port", address)
	}
	if host != "127.0.0.1" && host != "localhost" {
		return "", 0, fmt.Errorf(
			"%q: only 127.0.0.1 and localhost, since everybody who sees the page may use its switches", address)
	}
	if port, err = strconv.Atoi(text); err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q: a port from 0 to 65535", address)
	}
	return host, port, nil
}

// listen listens on the first free port that is not less than that of address. Port 0 means any
// port.
func listen(ctx context.Context, address string) (net.Listener, error) {
	_, port, err := split(address)
	if err != nil {
		return nil, err
	}
	const tries = 100
	var config net.ListenConfig
	for last := min(port+tries, 65535); ; port++ {
		listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || port >= last {
			return listener, err
		}
	}
}

// run serves until ctx ends, and releases everything.
func run(ctx context.Context, address string, c config, stdout io.Writer) error {
	listener, err := listen(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	l, err := newLab(c)
	if err != nil {
		return err
	}
	defer l.close()
	server := &http.Server{Handler: l.handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(stdout, "The lab is at http://%s/ (Ctrl-C ends it)\n", listener.Addr())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	l.stop() // ends the streams of frames; Shutdown would wait for them
	within, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if server.Shutdown(within) != nil {
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
