package promises

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Processes read, write and refresh a few keys at random. After a write, they invalidate the key,
// the groups that the row has left and entered, or the group in which it stays. Fresh reads must be
// consistent with a register for each key.

func init() { testenv.RegisterChild("groups-history", groupsHistoryChild) }

// historyGroups returns the group of the key, and the group of the value.
func historyGroups(key int, value string) []string {
	return []string{"key " + strconv.Itoa(key), "digit " + value[max(0, len(value)-1):]}
}

func groupsHistoryChild() {
	ctx := context.Background()
	o, _ := unhurried(patient, nil)
	if os.Getenv("FAULTS") != "" {
		o = cacheaside.Options{RedisTimeout: 200 * time.Millisecond, ReadTimeout: 200 * time.Millisecond,
			LeaseTTL: 500 * time.Millisecond, MaxStaleness: time.Second}
	}
	p := startHistory(o)
	loads := historyLoads
	loads.Groups = cacheaside.GroupsOf(historyGroups)
	l, err := cacheaside.NewLoader(p.cache, "row", p.load, &loads)
	if err != nil {
		panic(err)
	}
	check := func(err error) {
		if err != nil && os.Getenv("FAULTS") == "" {
			panic(err)
		}
	}
	p.run(l, func(r *rand.Rand, e event, n int) {
		switch kind := r.IntN(100); {
		case kind < 12:
			e.Write, e.Value = true, fmt.Sprint(e.Goroutine, "-", n)
			p.replace(ctx, &e)
			for invalidate := groupInvalidation(ctx, l, &e, r); ; time.Sleep(time.Millisecond) {
				err := invalidate()
				if check(err); err == nil {
					break
				}
			}
			e.Return = time.Now().UnixNano()
			p.report.add(e)
		case kind < 16: // a group of other rows, without a reason
			check(l.InvalidateGroup(ctx, historyGroups(e.Key, strconv.Itoa(n))[r.IntN(2)]))
		case kind < 22:
			out, err := readerOf(l).Refresh(ctx, e.Key)
			if check(err); err == nil {
				p.report.read(e, out)
			}
		case kind < 40: // through memory
			if _, err := readerOf(l).Get(ctx, fetch.Plain, e.Key); err != nil {
				check(err)
			}
		case kind < 60:
			keys := r.Perm(historyKeys)[:2+r.IntN(historyKeys-1)]
			readerOf(l).GetMany(ctx, fetch.Fresh, keys, func(i int, r *fetch.Round) {
				e.Key = keys[i]
				p.report.read(e, r)
			}, func(_ int, err error) { check(err) })
		default:
			out, err := readerOf(l).Get(ctx, fetch.Fresh, e.Key)
			if check(err); err == nil {
				p.report.read(e, out)
			}
		}
	})
}

// replace changes a row and records the previous value.
func (p *historyProcess) replace(ctx context.Context, e *event) {
	var err error
	if e.Previous, err = p.db.SetArgs(ctx, strconv.Itoa(e.Key), e.Value,
		redis.SetArgs{Get: true}).Result(); err != nil && !errors.Is(err, redis.Nil) {
		panic(err)
	}
}

// groupInvalidation returns a function that invalidates a row after a write.
func groupInvalidation(ctx context.Context, l *cacheaside.Loader[int, string], e *event, r *rand.Rand) func() error {
	was, is := historyGroups(e.Key, e.Previous), historyGroups(e.Key, e.Value)
	switch r.IntN(4) {
	case 0:
		return func() error { return l.Invalidate(ctx, e.Key) }
	case 1:
		return func() error { return l.InvalidateGroup(ctx, is[0]) }
	case 2:
		return func() error { return cacheOf(l).InvalidateKeys(ctx, l.Key(e.Key), l.GroupKey(is[1])) }
	default:
		e.Moves = true
		return func() error { return cacheOf(l).InvalidateKeys(ctx, l.GroupKey(was[1]), l.GroupKey(is[1])) }
	}
}

// settle ends each write when all older values are outdated. The invalidation of the group that a
// row has left outdates only the value that the write has replaced. The writer that replaced an
// even older value may still have to invalidate it.
func settle(history []porcupine.Operation) {
	type place struct {
		key      int
		previous string
	}
	writes := make(map[place]int)
	for i, op := range history {
		if e := op.Input.(event); e.Write {
			writes[place{e.Key, e.Previous}] = i
		}
	}
	for key := range historyKeys {
		before := int64(0)
		for at := (place{key, ""}); ; {
			i, ok := writes[at]
			if !ok {
				break
			}
			op := &history[i]
			if op.Input.(event).Moves {
				op.Return = max(op.Return, before)
			}
			before, at.previous = op.Return, op.Input.(event).Value
		}
	}
}

// essential returns the writes and two reads of each value: the one that began last and the one
// that ended first. A row never has the same value twice. So the value must be written before the
// end of its first read, and not be replaced before the start of the last. Other reads add no
// requirement, and porcupine would need memory for all their orders.
func essential(history []porcupine.Operation) (few []porcupine.Operation) {
	type value struct {
		key  int
		text string
	}
	last, first := make(map[value]porcupine.Operation), make(map[value]porcupine.Operation)
	for _, op := range history {
		e := op.Input.(event)
		if e.Write {
			few = append(few, op)
			continue
		}
		v := value{e.Key, e.Value}
		if before, ok := last[v]; !ok || op.Call > before.Call {
			last[v] = op
		}
		if before, ok := first[v]; !ok || op.Return < before.Return {
			first[v] = op
		}
	}
	return slices.AppendSeq(slices.AppendSeq(few, maps.Values(last)), maps.Values(first))
}

// The essential part of a history gets the same verdict as the whole.
func TestReducedHistoryHasSameVerdict(t *testing.T) {
	r, verdicts := rand.New(rand.NewPCG(1, 2)), make(map[bool]int)
	for range 3000 {
		var history []porcupine.Operation
		add := func(e event) {
			e.Call = r.Int64N(20)
			history = append(history, porcupine.Operation{Input: e, Call: e.Call, Return: e.Call + 1 + r.Int64N(20)})
		}
		values := []string{"", "a", "b", "c"}
		for i, v := range values[1:] {
			add(event{Write: true, Value: v, Previous: values[i]})
		}
		for range 1 + r.IntN(6) {
			add(event{Value: values[r.IntN(len(values))]})
		}
		whole := porcupine.CheckOperations(replacing(), history)
		verdicts[whole]++
		if porcupine.CheckOperations(replacing(), essential(history)) != whole {
			t.Fatalf("whole: %v: %+v", whole, history)
		}
	}
	if verdicts[true] < 300 || verdicts[false] < 300 {
		t.Errorf("%v", verdicts)
	}
}

// replacing is register with writes in the order of the database.
func replacing() porcupine.Model {
	m := register
	m.Step = func(state, input, output any) (bool, any) {
		e := input.(event)
		if e.Write && e.Previous != state {
			return false, state
		}
		return register.Step(state, input, output)
	}
	return m
}

func TestHistoryOfGroups(t *testing.T) {
	processes, length, steps, seeds := 2, time.Duration(0), 150, 1
	if accepting {
		processes, length, steps, seeds = 8, 20*time.Second, 0, 5
	}
	for seed := range seeds {
		history, sum := watchHistory(t, "groups-history", testenv.SharedRedis(t), processes, length, seed,
			"STEPS="+strconv.Itoa(steps))
		checkGroups(t, seed, history, sum)
	}
}

func checkGroups(t *testing.T, seed int, history []porcupine.Operation, sum *historyReport) {
	t.Helper()
	settle(history)
	began, stats := time.Now(), sum.Stats
	result := porcupine.CheckOperationsTimeout(replacing(), essential(history), 5*testenv.Hang)
	t.Logf("seed %d: %d operations, %d loads, %d outdated, %d refused, %d hits, %d waits, %d unvalidated reads left "+
		"out; checked in %v: %s",
		seed, len(history), stats.Loads, stats.Outdated, stats.Refused, stats.RedisHits, stats.Waits, sum.Unvalidated,
		time.Since(began).Round(time.Millisecond), result)
	if result != porcupine.Ok {
		t.Errorf("seed %d: %s", seed, result)
	}
	if len(history) < 1000 || stats.Outdated == 0 || stats.RedisHits == 0 {
		t.Errorf("seed %d: too few operations for a verdict", seed)
	}
}
