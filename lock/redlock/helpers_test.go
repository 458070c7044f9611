package redlock_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

func TestMain(m *testing.M) {
	// Most suite tests only wait; -parallel on the command line prevails.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	testenv.Main(m)
}

func init() {
	locktest.Child(func(o *lock.Options) (*lock.Locker, error) {
		var clients []*redis.Client
		for addr := range strings.SplitSeq(os.Getenv("LOCK_REDLOCK"), ",") {
			clients = append(clients, redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}))
		}
		return redlock.New(clients, o)
	})
}
