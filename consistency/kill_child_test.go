package consistency

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() {
	testenv.RegisterChild("kill-writer", killWriter)
	testenv.RegisterChild("kill-reader", killReader)
	testenv.RegisterChild("kill-relay", killRelay)
}

// points are the names that point is called with: of a write first, and then of the removal of its
// rows and of a Relay.
var points = []string{
	"held", "begun", "written", "admitted", "outbox-written", "touched-held", "checked", "committed", "rolledback",
	"stored", "filters-committed", "invalidated", "released", "queued",
	"removing", "removed", "relaying", "relayed", "gone",
}

// dieAt has the process kill itself at its configured point.
func (k killWorld) dieAt() {
	if k.Point == "" {
		return
	}
	var passed atomic.Int64
	point = func(name string) {
		if name == k.Point && passed.Add(1) == int64(k.Nth) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

// killWriter writes until it is killed.
func killWriter() {
	p := killedWorld()
	c := killCases[p.Case]
	s := p.sides[c.side()]
	o := &Options{Level: c.level, Queue: s.box, NoRelay: true, AsyncDelay: 100 * time.Millisecond, Reload: p.Reload}
	if c.memory {
		o.Queue, o.NoRelay, o.Relay = nil, false, killRelayOptions()
	}
	if p.Double {
		o.DoubleDelete = 100 * time.Millisecond
	}
	p.dieAt()
	w, err := NewWriter(p.db, s.cache, o)
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(p.Seed, uint64(p.Who<<8|n)))
			for {
				if err := p.write(w, c, s, r); err != nil { // Redis is out, perhaps
					time.Sleep(5 * time.Millisecond)
				}
				time.Sleep(time.Duration(r.Int64N(int64(4 * time.Millisecond))))
			}
		})
	}
	all.Wait()
}

var errNotNow = errors.New("rolled back, as was intended")

// write makes one write, of a row that is cached.
func (k *killProcess) write(w *Writer, c killCase, s killSide, r *rand.Rand) error {
	ctx := context.Background()
	id, block := ids(k.Block)[r.IntN(killRows)], int64(k.Block)
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond) // the process that loads them may be dead
	_, _ = s.rows.Get(short, id)
	_, _ = s.sums.Get(short, block)
	cancel()
	give := r.IntN(8) != 0
	add := func(ctx context.Context, tx *sqlx.Tx) (n int64, err error) {
		if err := execOn(ctx, tx, "UPDATE kill_row SET n = n + 1 WHERE id = ?", id); err != nil {
			return 0, err
		}
		if err := Touch(ctx, s.sums.Key(block)); err != nil {
			return 0, err
		}
		if !give {
			return 0, errNotNow
		}
		err = tx.GetContext(ctx, &n, tx.Rebind("SELECT n FROM kill_row WHERE id = ?"), id)
		return n, err
	}
	var err error
	if c.through {
		err = WriteThrough(ctx, w, s.rows, id, add)
	} else {
		err = w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := add(ctx, tx)
			return err
		}, s.rows.Key(id))
	}
	if errors.Is(err, errNotNow) {
		return nil
	}
	return err
}

func killRelayOptions() *RelayOptions {
	return &RelayOptions{Poll: 20 * time.Millisecond, ClaimFor: time.Second, Logger: slog.New(slog.DiscardHandler)}
}

// killRelay works on both outboxes until its standard input ends.
func killRelay() {
	p := killedWorld()
	defer p.close()
	p.dieAt()
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, s := range p.sides {
		o := killRelayOptions()
		if p.Patient {
			o.ClaimFor = 0 // as by default
		}
		r, err := NewRelay(s.cache, relayedQueue{s.box}, o)
		if err != nil {
			panic(err)
		}
		all.Go(func() {
			if err := r.Run(ctx); err != nil {
				panic(err)
			}
		})
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	all.Wait()
}

// relayedQueue passes points of a Relay: when it has claimed items, and before and after it gives
// them back.
type relayedQueue struct{ TestOutbox }

func (r relayedQueue) Claim(ctx context.Context, most int, life time.Duration) ([]Item, error) {
	items, err := r.TestOutbox.Claim(ctx, most, life)
	if len(items) > 0 {
		point("relaying")
	}
	return items, err
}

func (r relayedQueue) Done(ctx context.Context, items ...Item) error {
	point("relayed")
	err := r.TestOutbox.Done(ctx, items...)
	point("gone")
	return err
}

func (r relayedQueue) Later(ctx context.Context, items ...Item) error {
	point("relayed")
	return r.TestOutbox.Later(ctx, items...)
}

// killReader caches the keys of the blocks named on its stdin, and reads all of them on request. At
// "rest" it prints the keys whose cached value differs from the database.
func killReader() {
	p := killedWorld()
	defer p.close()
	var first, next, resting atomic.Int64
	var all sync.WaitGroup
	for n := range 2 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(p.Seed, uint64(p.Who<<8|n)))
			for resting.Load() == 0 {
				lo, hi := first.Load(), next.Load()
				for block := lo; block < hi && resting.Load() == 0; block++ {
					p.read(int(block))
				}
				if hi > 0 {
					p.read(int(r.Int64N(hi))) // an older one
				}
				time.Sleep(2*time.Millisecond + time.Duration(r.Int64N(int64(4*time.Millisecond+p.Slow))))
			}
		})
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var lo, hi int64
		if n, _ := fmt.Sscanf(in.Text(), "read %d %d", &lo, &hi); n == 2 {
			first.Store(lo)
			next.Store(hi)
			continue
		}
		if n, _ := fmt.Sscanf(in.Text(), "all %d", &hi); n == 1 {
			for block := range int(hi) {
				p.read(block)
			}
			fmt.Println("has read all")
			continue
		}
		resting.Store(1)
		all.Wait()
		wrong, err := p.settled(context.Background(), int(next.Load()))
		for _, s := range wrong {
			fmt.Println("stale", s.sum, s.key, s.got, s.want)
		}
		fmt.Println("checked", err)
		return
	}
}

func (k *killProcess) read(block int) {
	s, ctx := k.side(block), context.Background()
	_, _ = s.rows.GetMany(ctx, ids(block))
	_, _ = s.sums.Get(ctx, int64(block))
}
