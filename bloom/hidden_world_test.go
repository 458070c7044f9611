package bloom

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A world is the data that all processes of TestNothingIsHidden share outside of Redis: the table,
// the acknowledged rows with their times, and the counters, in a file that all map into memory. So
// a process that looks a key up knows which promises were made before the lookup began.
type world struct {
	config worldConfig
	counts *[counters]int64
	rows   []row
}

// row is a row of the table, and what is known of its key.
type row struct {
	promised int64  // when it was acknowledged; 0: not acknowledged
	told     uint32 // which process has added it, and how: set before it is promised
	there    uint32 // 1: its insert was committed, so that a source yields it
}

// worldConfig configures a child process.
type worldConfig struct {
	File      string
	Addrs     []string
	Cluster   bool
	Seed      uint64
	Rows      int
	Who       int // of the children
	Staleness time.Duration
	Slow      time.Duration // a writer's pause after a batch
	Until     int64         // checks
}

const (
	stop        = iota // set by the parent: everybody ends
	next               // row
	allChecks          // of keys that were promised
	checks             // of these, the lookups next to which the filter denied another key: it existed, and replied
	ownChecks          // of those that were promised by the same process a moment ago
	oldChecks          // by a descriptor that is old
	heldChecks         // by a Replica
	copyChecks         // of those, by its own copy
	freshChecks        // by MightContainFresh
	asked              // keys that were never added
	absent             // of them, those that were certainly not there
	failedLookups
	added // keys, by route
	addedMany
	admitted
	uncommitted // committed was never called
	rolledBack
	failedAdds
	rebuilt // rebuilds that were through
	resumed
	failedRebuilds
	outlocked // while another had the lock
	counters
)

const worldHeader = 4096

func (w worldConfig) size() int { return worldHeader + w.Rows*int(unsafe.Sizeof(row{})) }

func openWorld(c worldConfig) (*world, error) {
	file, err := os.OpenFile(c.File, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(int64(c.size())); err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(file.Fd()), 0, c.size(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &world{
		config: c,
		counts: (*[counters]int64)(unsafe.Pointer(&b[0])),
		rows:   unsafe.Slice((*row)(unsafe.Pointer(&b[worldHeader])), c.Rows),
	}, nil
}

// childWorld is that of a child process.
func childWorld() *world {
	var c worldConfig
	err := json.Unmarshal([]byte(os.Getenv("WORLD")), &c)
	if err == nil {
		var w *world
		if w, err = openWorld(c); err == nil {
			return w
		}
	}
	panic(err)
}

func (w *world) count(what int, n int) { atomic.AddInt64(&w.counts[what], int64(n)) }
func (w *world) get(what int) int64    { return atomic.LoadInt64(&w.counts[what]) }
func (w *world) ended() bool           { return w.get(stop) != 0 }

// take returns the first of n rows that no process uses; false: there are no more.
func (w *world) take(n int) (first int, ok bool) {
	first = int(atomic.AddInt64(&w.counts[next], int64(n))) - n
	return first, first+n <= w.config.Rows
}

func (w *world) key(i int) string { return fmt.Sprintf("key%08d", i) }

// commit makes rows visible to the source.
func (w *world) commit(first, n int) {
	for i := first; i < first+n; i++ {
		atomic.StoreUint32(&w.rows[i].there, 1)
	}
}

// The ways in which keys are added.
const (
	byAdd = iota
	byAddMany
	byCommitted
	bySettle // committed was never called, but the transaction was short
)

var routes = []string{"Add", "AddMany", "committed", "Inserting, and a commit soon after"}

// promise says that from now on rows must be found.
func (w *world) promise(first, n, route int) {
	now := clock()
	for i := first; i < first+n; i++ {
		atomic.StoreUint32(&w.rows[i].told, uint32(w.config.Who<<8|route))
		atomic.StoreInt64(&w.rows[i].promised, now)
	}
}

// source yields the rows that are committed at the time.
func (w *world) source(_ context.Context, after string) iter.Seq2[string, error] {
	first := 0
	if after != "" {
		n, err := strconv.Atoi(after[3:])
		if err != nil {
			panic(err)
		}
		first = n + 1
	}
	return func(yield func(string, error) bool) {
		for i := first; i < len(w.rows) && i < int(w.get(next)); i++ {
			if atomic.LoadUint32(&w.rows[i].there) != 0 && !yield(w.key(i), nil) {
				return
			}
		}
	}
}

// brief is a descriptor as people read it.
func brief(raw string) string {
	d, err := decodeDescriptor(raw)
	if raw == "" || err != nil {
		return "none"
	}
	b := d.Revision[:4] + ":"
	for _, g := range d.generations() {
		what := " old "
		switch g {
		case d.Active:
			what = " active "
		case d.Building:
			what = " building "
		}
		b += what + g.ID[:4]
		if !g.Ready {
			b += " (not ready)"
		}
	}
	return b
}

// client is one of the servers of the test.
func (w worldConfig) client() redis.UniversalClient {
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if w.Cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: w.Addrs, MaintNotificationsConfig: quiet})
	}
	return redis.NewClient(&redis.Options{Addr: w.Addrs[0], MaintNotificationsConfig: quiet})
}
