package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/cacheaside/cacheaside/internal/flight"
)

// Filter tells which keys certainly have no row, before Redis or the database is asked for them (LoaderOptions.Filter). The filters of package bloom are
// such. Keys are the loader's key texts: a string as it is, an integer in decimal, what MarshalText or LoaderOptions.Key gives. All methods are called by many
// goroutines at once, and should return when ctx ends: reads that share a hanging one leave by their own contexts, but Close waits for it. A panic in one does no more harm than an error.
//
// A Filter may have four methods more:
//
//	MightContainNow(key string) (may, known bool)
//	MightContainFresh(ctx context.Context, keys []string) ([]bool, error)
//	CheckRebuilt(check func(ctx context.Context, holds func(ctx context.Context, keys []string) ([]bool, error)) (hidden int, err error)) (remove func())
//	Hidden(ctx context.Context, key string) error
//
// MightContainNow answers at once, on the goroutine of the caller of Get, or says that it does not know; then MightContain is asked, as it is where there is no such method, on a goroutine of its own, which
// makes a refusal some microseconds slower. It is for filters in the memory of the process.
//
// MightContainFresh is asked for reads with the option Fresh. It is for filters
// that may learn of other processes' keys a little later: it must know each key whose committed (see Admit) has returned nil, in any process.
//
// CheckRebuilt is for filters that are built anew while they serve. The loader gives it a check,
// until Close. The filter calls that with what it has built, before it answers by it: check asks
// holds for up to 1,000 keys whose rows this loader's loads have returned within the last hour, and
// loads those that the new filter lacks. It answers how many of these rows are there: the filter
// must not hide them. An error with 0 says that it could not find out.
//
// Hidden tells the filter that it has refused a key whose row exists (see
// LoaderOptions.AuditEvery). It must say true for all keys until it was built anew, in all
// processes if it is shared. It is called again if it returns an error. A filter without it is not
// asked any more by this loader until it says true for that key.
type Filter interface {
	// MightContain tells whether there may be a row of key: false only if there is certainly none. It need not say true where it returns an error.
	MightContain(ctx context.Context, key string) (bool, error)

	// MightContainMany answers for each of keys, in their order. It must not keep or change keys.
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)

	// AddMany has it say true for keys from now on. The loader does not call it; it is for who fills the filter.
	AddMany(ctx context.Context, keys []string) error

	// Admit adds the keys of rows before the transaction that inserts them commits, and committed, called when it has, ends what could hide them even so. Once
	// that has returned nil, the filter must say true for them, for ever. It may be called again. A nil committed has nothing to do.
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)

	// NotFound tells the filter that so many keys for which it has said true have turned out to have no row. It must not block.
	NotFound(keys int)
}

// verdict is what a loader's filter has said of a round's key.
type verdict uint8

const (
	notAsked verdict = iota
	unanswered
	passed
	refused
	checked // refused, and the database is asked all the same
)

// setFilter takes the filter of the options.
func (l *Loader[K, V]) setFilter() error {
	f := l.options.Filter
	if f == nil {
		return nil
	}
	if v := reflect.ValueOf(f); v.Kind() == reflect.Pointer && v.IsNil() { // as of a constructor whose error was overlooked: the loader would go on without what it was to have
		return fmt.Errorf("LoaderOptions.Filter: a nil %T; for no filter leave it nil", f)
	}
	l.filter = f
	if now, ok := f.(interface {
		MightContainNow(key string) (may, known bool)
	}); ok {
		l.filterNow = now.MightContainNow
	}
	if fresh, ok := f.(interface {
		MightContainFresh(ctx context.Context, keys []string) ([]bool, error)
	}); ok {
		l.filterFresh = fresh.MightContainFresh
	}
	return nil
}

// sift ends those rounds whose keys the filter refuses, before anything else is done for them. It is called when their callers are fixed: who comes later, perhaps after
// the row was inserted, gets an answer of a later round. What has passed is not asked for again. With Bypass the filter is passed by, as the caches are.
//
// Nobody but reads asks the filter. Refresh is for who knows of a change; Warm for who knows which rows there are, and has means to fill the
// caches where the filter lacks them; and what is reloaded in the background was there before.
func (l *Loader[K, V]) sift(ctx context.Context, rounds []*round[K, V]) {
	asked := l.toAsk(rounds)
	switch {
	case len(asked) == 0:
	case len(asked) == 1 && !l.asksFresh(asked[0]):
		may, err := l.askOne(ctx, asked[0].Result.text)
		l.sifted(ctx, asked[0], may, err)
	default:
		may, err := l.askMany(ctx, asked)
		for i, r := range asked {
			l.sifted(ctx, r, len(may) == len(asked) && may[i], err)
		}
	}
}

// siftNow is sift on the caller's own goroutine, which must not wait but for what ends with his context. It answers false if some are still to be asked for, in a flight.
func (l *Loader[K, V]) siftNow(rounds []*round[K, V]) (all bool) {
	all = true
	for _, r := range l.toAsk(rounds) {
		if l.filterNow == nil || l.asksFresh(r) {
			return false
		}
		may, known, err := l.askNow(r.Result.text)
		if known || err != nil {
			l.sifted(context.Background(), r, may, err)
		} else {
			all = false
		}
	}
	return all
}

// toAsk returns those of rounds for which the filter is to be asked.
func (l *Loader[K, V]) toAsk(rounds []*round[K, V]) []*round[K, V] {
	if l.audit.doubted.Load() {
		return nil
	}
	for _, r := range rounds {
		if s := &r.Result; s.step == toBegin && s.verdict == notAsked && !s.unsifted && l.identify(r) && !s.bypass {
			s.step = toAsk
		}
	}
	return at(rounds, toAsk)
}

// sifted notes the filter's answer for a round.
func (l *Loader[K, V]) sifted(ctx context.Context, r *round[K, V], may bool, err error) {
	s := &r.Result
	s.step = toBegin
	switch {
	case err != nil:
		s.verdict = unanswered
		if ctx.Err() == nil { // else the callers have left: that is why
			l.counters.filterErrors.Add(1)
		}
	case may:
		s.verdict = passed
	case l.auditDue():
		s.verdict, s.bypass = checked, true // the caches may hold what is older than the row
	default:
		l.counters.filtered.Add(1)
		s.verdict, s.null, s.step = refused, true, over
	}
}

func (l *Loader[K, V]) asksFresh(r *round[K, V]) bool { return r.Result.fresh && l.filterFresh != nil }

func (l *Loader[K, V]) askNow(text string) (may, known bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = caught(p)
		}
	}()
	may, known = l.filterNow(text)
	return may, known, nil
}

// askOne is askMany of one key, without its allocations.
func (l *Loader[K, V]) askOne(ctx context.Context, text string) (may bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = caught(p)
		}
	}()
	return l.filter.MightContain(ctx, text)
}

var errFilterLength = errors.New("the filter has not answered for each key")

func (l *Loader[K, V]) askMany(ctx context.Context, rounds []*round[K, V]) (may []bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = caught(p)
		}
	}()
	texts := make([]string, len(rounds))
	for i, r := range rounds {
		texts[i] = r.Result.text
	}
	if l.asksFresh(rounds[0]) { // all are of one group of flights
		may, err = l.filterFresh(ctx, texts)
	} else {
		may, err = l.filter.MightContainMany(ctx, texts)
	}
	if err == nil && len(may) != len(texts) {
		err = errFilterLength
	}
	return may, err
}

// letThrough counts those rounds that have passed the filter and are at their end now, without a
// row, and tells the filter. Reads that memory answers have not asked the filter, and are not
// counted. Refusals that were checked are ended.
func (l *Loader[K, V]) letThrough(done []*round[K, V]) {
	n := 0
	for _, r := range done {
		switch s := &r.Result; {
		case s.verdict == checked:
			l.audited(r)
		case s.verdict == passed && s.null && r.Err == nil:
			n++
		}
	}
	if n == 0 {
		return
	}
	l.counters.falsePositives.Add(int64(n))
	defer func() {
		if p := recover(); p != nil {
			l.counters.filterErrors.Add(1)
		}
	}()
	l.filter.NotFound(n)
}

// firstUnsifted and readUnsifted are first and read for Warm.
func (l *Loader[K, V]) firstUnsifted(ctx context.Context, rounds []*round[K, V]) (done, rest []*round[K, V]) {
	unsifted(rounds)
	return l.first(ctx, rounds)
}

func (l *Loader[K, V]) readUnsifted(ctx context.Context, f *flight.Flight[K, state[V]]) {
	unsifted(f.Rounds)
	l.read(ctx, f)
}

func unsifted[K comparable, V any](rounds []*round[K, V]) {
	for _, r := range rounds {
		r.Result.unsifted = true
	}
}
