package consistency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
)

// lane is what is done in groups one after the other, and beside all other lanes: what runs a
// filter, or a load function, of one loader, which may hang. The zero lane is for what runs
// neither.
type lane struct {
	loader   string
	reload   bool
	isolated bool // of keys that have hung, or panicked, by themselves
	forgets  bool // for what other lanes cannot do now: it invalidates the keys, and that is all
}

// laneState is how a lane gets on.
type laneState struct {
	active  *group
	todo    []task                      // of this round, after it
	claimed time.Time                   // when that was
	lost    map[*group]struct{}         // those that have not ended in time, nor yet
	most    int                         // tasks of the next group
	good    int                         // groups since that was changed
	told    map[cacheaside.Key]struct{} // keys that were invalidated while it could not do them
	warned  bool                        // somebody was, that it is in trouble
}

// task is an item in a lane.
type task struct {
	Item
	why error // of a lane that forgets: why the item is not done when its key is invalidated
}

const (
	// waits is the part of a claim's life that a round waits for its groups; waitsLess is for those
	// of lanes that are in trouble already.
	waits     = 10
	waitsLess = 100

	// narrower is by how much a group is smaller after one that has hung, or panicked; and so many
	// in a row must have done neither until one is twice as large. So a key that hangs is found
	// with four groups: of 500, 62, 7 and 1.
	narrower = 8

	// badAfter is how often an item has failed that is done after the others, and by itself.
	badAfter = 3

	// lostAtMost is how many goroutines of a lane may hang for good until no more are begun.
	lostAtMost = 16

	// isolatedAtMost bounds how many keys are known to hang by themselves, toldAtMost how many are
	// known to be invalidated.
	isolatedAtMost = 1000
	toldAtMost     = 10_000
)

// errBusy is why an item is put back that was not tried.
var errBusy = errors.New("other items of its loader are slow")

func (s *shift) state(of lane) *laneState {
	l := s.lanes[of]
	if l == nil {
		l = &laneState{lost: map[*group]struct{}{}, most: batch, told: map[cacheaside.Key]struct{}{}}
		if of.isolated {
			l.most = 1
		}
		s.lanes[of] = l
	}
	return l
}

// laneOf is the lane of an item. As there are no more of them than a few for each loader of the
// process, there are no more goroutines.
func (s *shift) laneOf(item *Item) lane {
	if item.Key.Check() != nil || item.Key.All {
		return lane{}
	}
	has, filter := s.cache.Loader(item.Key.Loader)
	if !has || !filter && !item.Reload {
		return lane{}
	}
	_, isolated := s.isolated[workOf(item)]
	return lane{loader: item.Key.Loader, reload: item.Reload, isolated: isolated}
}

func workOf(item *Item) work { return work{item.Key, item.Reload} }

// blocked tells why an item is not to be tried now; nil: it is.
func (s *shift) blocked(of lane, item *Item) error {
	l := s.state(of)
	_, stuck := s.stuck[workOf(item)]
	switch {
	case l.active != nil:
		return errBusy
	case stuck, len(l.lost) >= lostAtMost:
		return s.hangs(of)
	}
	return nil
}

// work has items done, all lanes at once, and waits for that a little. It returns the groups that
// have ended, and the items that are to be put back untried.
func (s *shift) work(ctx context.Context, items []Item, claimed time.Time) (over []*group, back []Item) {
	lanes, back := s.plan(ctx, items)
	for _, of := range lanes {
		l := s.lanes[of]
		l.claimed = claimed
		inOrder(l.todo)
		s.next(ctx, of, l)
	}
	for wait := s.stillWaits(lanes, claimed); wait > 0 && ctx.Err() == nil; wait = s.stillWaits(lanes, claimed) {
		enough := time.NewTimer(wait)
		select {
		case r := <-s.ended:
			if g := s.note(ctx, r); g != nil {
				over = append(over, g)
			}
		case <-enough.C:
		case <-ctx.Done():
		}
		enough.Stop()
	}
	for _, of := range lanes {
		l := s.lanes[of]
		for _, t := range l.todo {
			back = append(back, s.putOff(ctx, of, t))
		}
		l.todo = nil
	}
	return over, back
}

// plan parts items by lanes, and returns those that have something to do, and the items that none
// can do now.
func (s *shift) plan(ctx context.Context, items []Item) (lanes []lane, back []Item) {
	add := func(of lane, t task) {
		l := s.state(of)
		if len(l.todo) == 0 {
			lanes = append(lanes, of)
		}
		l.todo = append(l.todo, t)
	}
	forgets := lane{forgets: true}
	for i := range items {
		item := &items[i]
		of := s.laneOf(item)
		why := s.foreign(item)
		if why == nil {
			why = s.blocked(of, item)
		}
		switch {
		case why == nil:
			add(of, task{*item, nil})
		case s.blocked(forgets, item) == nil && s.forgetsNow(of, item):
			add(forgets, task{*item, why})
		default:
			back = append(back, s.putOff(ctx, of, task{*item, why}))
		}
	}
	return lanes, back
}

// forgetsNow tells whether the key of an item that cannot be done is to be invalidated meanwhile.
// That is done once, so that what is read often is not loaded again and again; but while Redis is
// out somebody has to find out whether it still is. A reload that takes long is waited for a
// little.
func (s *shift) forgetsNow(of lane, item *Item) bool {
	l := s.state(of)
	if s.foreign(item) != nil {
		return item.Attempts == 0
	}
	if of == (lane{}) || of.reload && !l.warned && l.active != nil && time.Since(l.active.claimed) < s.options.ClaimFor/3 {
		return false
	}
	_, told := l.told[item.Key]
	if !told && len(l.told) < toldAtMost {
		l.told[item.Key] = struct{}{}
	}
	return !told || s.outage > 0
}

// inOrder has tasks in an order of chance, so that it is others each time that come after one that
// hangs, and those last that have failed often.
func inOrder(tasks []task) {
	rand.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	slices.SortStableFunc(tasks, func(a, b task) int { return min(a.Attempts, badAfter) - min(b.Attempts, badAfter) })
}

// next has the next group of a lane begin.
func (s *shift) next(ctx context.Context, of lane, l *laneState) {
	n := min(l.most, l.together())
	if l.active != nil || n == 0 || len(l.lost) >= lostAtMost {
		return
	}
	g := &group{lane: of, tasks: l.todo[:n:n], claimed: l.claimed, until: l.claimed.Add(s.options.ClaimFor * 2 / 3)}
	l.todo = l.todo[n:]
	s.begin(ctx, g)
}

// together is how many of the next tasks may be done at once: when the lane is in trouble, none
// that has failed often beside another.
func (l *laneState) together() int {
	bad := slices.IndexFunc(l.todo, func(t task) bool { return t.Attempts >= badAfter })
	switch {
	case !l.warned || bad < 0:
		return len(l.todo)
	case bad == 0:
		return 1
	}
	return bad
}

// stillWaits is how long a round still waits.
func (s *shift) stillWaits(lanes []lane, claimed time.Time) time.Duration {
	until, busy := claimed.Add(s.options.ClaimFor/waitsLess), false
	for _, of := range lanes {
		l := s.lanes[of]
		if l.active == nil || of.isolated { // those are not waited for at all
			continue
		}
		busy = true
		if !l.warned {
			until = claimed.Add(s.options.ClaimFor / waits)
		}
	}
	if !busy {
		return 0
	}
	return time.Until(until)
}

// putOff says when an item is claimed again that was not done: the later, the longer its lane has
// been busy, as there may be many of them.
func (s *shift) putOff(ctx context.Context, of lane, t task) Item {
	why := t.why
	switch {
	case ctx.Err() != nil:
		t.After = 0
	case errors.Is(why, errForeign):
		return s.unknown(ctx, t.Item, why)
	case why != nil && !errors.Is(why, errBusy):
		return s.failed(ctx, t.Item, why)
	default:
		d := firstDelay
		l := s.state(of)
		if l.active != nil {
			d = max(d, time.Since(l.active.claimed)/4)
		}
		if l.warned {
			d = max(d, s.options.ClaimFor/12)
		}
		t.After = d/2 + rand.N(d/2+1)
	}
	return t.Item
}

// learn has a lane do less at once after a group that has hung, or panicked, and more after one
// that has not.
func (s *shift) learn(ctx context.Context, l *laneState, g *group, bad bool) {
	switch {
	case g.loader == "":
	case !bad:
		for i, err := range g.errs {
			if err == nil {
				delete(s.isolated, workOf(&g.tasks[i].Item))
			}
		}
		if l.good++; l.good >= narrower && !g.isolated {
			l.most, l.good = min(batch, 2*l.most), 0
			l.warned = l.warned && l.most < batch
		}
	default:
		l.good = 0
		if !l.warned {
			l.warned = true
			s.log(ctx, slog.LevelWarn, "cacheaside: a filter, or a load function, that a Relay has called has hung or panicked; it is tried with fewer keys at once", "loader", g.loader)
		}
		if len(g.tasks) > 1 {
			l.most = max(1, min(l.most, len(g.tasks))/narrower)
		} else if len(s.isolated) < isolatedAtMost {
			s.isolated[workOf(&g.tasks[0].Item)] = struct{}{}
		}
	}
}

func (s *shift) hangs(of lane) error {
	what := "its filter"
	if of.reload {
		what = "its load function, or its filter,"
	}
	return fmt.Errorf("loader %s: %s has not returned within %v", of.loader, what, s.options.ClaimFor*2/3)
}
