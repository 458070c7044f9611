package zklock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/cacheaside/cacheaside/lock/zklock"
)

// It needs a ZooKeeper, so it is compiled but not run.
func ExampleNew() {
	locker, err := zklock.New([]string{"zk1:2181", "zk2:2181", "zk3:2181"}, &zklock.Options{
		SessionTimeout: 15 * time.Second, // locks of a killed process are held for this long
	})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = locker.Do(context.Background(), "report", nil, func(ctx context.Context, token int64) error {
		fmt.Println("one process at a time, in the order in which they came; ctx ends before another can have the "+
			"lock", token)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
