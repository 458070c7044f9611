// Cacheaside shows and repairs the data of the library in Redis and in the database. See
// docs/guides/tool.md, or
//
//	go run github.com/cacheaside/cacheaside/cmd/cacheaside help
package main

import (
	"context"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9/logging"
)

func main() {
	logging.Disable() // the command itself reports each error once
	_ = mysql.SetLogger(log.New(io.Discard, "", 0))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program immediately
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}
