package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

var buyers = 1000 // a variable for tests

const (
	shops    = 3           // number of processes, in addition to the victim's
	maxPause = time.Minute // maximum wait for an event
)

// sale is the outcome of a sale.
type sale struct {
	scenario
	sold, left, refused int
	seconds             int // buyers who had the lock while the victim was suspended, and were suspended, too
}

// excess returns how many more items were sold than were in stock.
func (s sale) excess() int { return max(s.sold+s.left-pieces, 0) }

func (s sale) outcome() outcome {
	switch {
	case s.excess() > 0:
		return oversold
	case s.left > 0:
		return stuck
	}
	return fine
}

// holds reports whether the sale has ended as expected and because of the injected fault. The
// error describes the difference.
func (s sale) holds() error {
	bad := s.outcome() != s.want
	switch s.want {
	case stuck:
		bad = bad || s.sold != 0
	case oversold:
		bad = bad || s.refused != 0
	default:
		bad = bad || s.sold != pieces
	}
	switch {
	case bad:
		return fmt.Errorf("%s, %s: sold %d, left %d, refused %d", s.name, s.happens, s.sold, s.left, s.refused)
	case s.want == fine && s.plan.until == anotherSale && s.refused == 0:
		return fmt.Errorf("%s, %s: the fault had no effect: no purchase was refused", s.name, s.happens)
	case s.plan.until == second && s.seconds != 1:
		return fmt.Errorf("%s, %s: the fault had no effect: no other buyer had the lock during it", s.name, s.happens)
	}
	return nil
}

// nodes are Redis servers in this process. Keys expire by their clocks.
type nodes struct {
	all   []*miniredis.Miniredis
	stop  chan struct{}
	clock sync.WaitGroup
}

func openNodes() (*nodes, error) {
	n := &nodes{stop: make(chan struct{})}
	for range 5 {
		m, err := miniredis.Run()
		if err != nil {
			n.close()
			return nil, err
		}
		m.ClockTTL(true)
		n.all = append(n.all, m)
	}
	return n, nil
}

func (n *nodes) addresses() (out []string) {
	for _, m := range n.all {
		out = append(out, m.Addr())
	}
	return out
}

// waitForVotes waits until all nodes that the holder has requested the lock from have it. A
// Redlock holder needs only a majority, and a late vote could otherwise be granted after the
// jump.
func (n *nodes) waitForVotes(ctx context.Context) {
	for end := time.Now().Add(maxPause); ctx.Err() == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
		have := 0
		for _, m := range n.all {
			if len(m.Keys()) > 0 {
				have++
			}
		}
		if have == 1 || have == len(n.all) {
			return
		}
	}
}

// jump sets the clocks of three nodes a minute ahead. They continue to run from there.
func (n *nodes) jump() {
	set := func() {
		for _, m := range n.all[:3] {
			m.SetTime(time.Now().Add(time.Minute))
		}
	}
	set()
	n.clock.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				set()
			case <-n.stop:
				return
			}
		}
	})
}

func (n *nodes) close() {
	close(n.stop)
	n.clock.Wait()
	for _, m := range n.all {
		m.Close()
	}
}

// hold runs the sale of a scenario with 1,000 buyers. The first is the victim, unless healthy is
// set. Buyers leave when nothing was sold for the time patience.
func hold(ctx context.Context, index int, patience time.Duration, healthy bool) (s sale, err error) {
	folder, err := os.MkdirTemp("", "cacheaside-flashsale-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	return holdAt(ctx, folder, index, patience, healthy)
}

// holdAt runs hold in the shop at this location, which must have no tables.
func holdAt(ctx context.Context, place string, index int, patience time.Duration, healthy bool) (s sale, err error) {
	s.scenario = scenarios[index]
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the cause of all later errors
		}
	}()
	n, err := openNodes()
	if err != nil {
		return s, err
	}
	defer n.close()
	shop, err := openShop(ctx, place)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, shop.Close()) }()
	if err := shop.fill(ctx, pieces, s.parts()); err != nil {
		return s, err
	}

	all, err := startAll(ctx, task{Redis: n.addresses(), Shop: place, Scenario: index, Healthy: healthy})
	defer func() {
		for _, p := range all {
			p.kill()
		}
	}()
	if err != nil {
		return s, err
	}
	if err := begin(all[:1], !healthy); err != nil {
		return s, err
	}
	if s.plan.jump && !healthy {
		n.waitForVotes(ctx)
		n.jump()
	}
	if err := begin(all[1:], false); err != nil {
		return s, err
	}
	results, err := watch(ctx, shop, all, patience)
	if err != nil {
		return s, err
	}
	for _, r := range results {
		s.refused += r.Refused
	}
	var errs [3]error
	s.sold, errs[0] = shop.sold(ctx)
	s.left, errs[1] = shop.left(ctx)
	s.seconds, errs[2] = shop.number(ctx, "SELECT COUNT(*) FROM events WHERE name = 'second'")
	return s, errors.Join(errs[:]...)
}

// startAll starts the process of the victim and the other processes, and waits until they are
// ready.
func startAll(ctx context.Context, t task) (all []*started, err error) {
	for i := range 1 + shops {
		t.Victim, t.First, t.Last = i == 0, 0, 1
		if i > 0 {
			t.First, t.Last = 1+(i-1)*(buyers-1)/shops, 1+i*(buyers-1)/shops
		}
		p, err := start(ctx, t)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	for _, p := range all {
		if err := p.expect("ready"); err != nil {
			return all, err
		}
	}
	return all, nil
}

var errNoFault = errors.New("the fault did not happen")

// begin starts the work of processes, and waits until the victim's fault has begun, if there is
// one.
func begin(all []*started, faulty bool) error {
	for _, p := range all {
		err := p.begin()
		if err == nil && faulty {
			if err = p.expect("begun"); err != nil && p.out.Text() != "" { // it has printed its result instead
				err = fmt.Errorf("%w: %w", errNoFault, err)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// watch waits until all processes have ended, or closes the shop.
func watch(ctx context.Context, shop *shop, all []*started, patience time.Duration) ([]result, error) {
	results, errs := make([]result, len(all)), make([]error, len(all))
	ended := make(chan struct{})
	var reading sync.WaitGroup
	for i, p := range all {
		reading.Go(func() { results[i], errs[i] = p.result() })
	}
	go func() {
		reading.Wait()
		close(ended)
	}()
	sold, since := 0, time.Now()
	for {
		select {
		case <-ended:
			return results, errors.Join(errs...)
		case <-time.After(10 * time.Millisecond):
		}
		if n, err := shop.sold(ctx); err == nil && n != sold {
			sold, since = n, time.Now()
		}
		if time.Since(since) > patience {
			for _, p := range all {
				p.in.Close()
			}
			<-ended
			return results, errors.Join(errs...)
		}
	}
}
