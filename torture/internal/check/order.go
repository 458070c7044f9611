package check

import (
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// Porcupine checks the same property as fresh, independently. Its memory grows with the square of
// the history, so the history is split into parts. A part starts with the newest version that had
// been read or acknowledged at its beginning, and has all writes that may have taken effect in it.
// With many concurrent operations porcupine may not finish. So its time is limited. The parts that
// it does not finish are counted; only fresh has checked them.
const (
	partReads   = 1000
	fewReads    = 20
	partTimeout = time.Second
	allTimeout  = 15 * time.Second
)

// access is an input of porcupine: a read or a write of a version.
type access struct {
	write   bool
	version int64
}

// register steps from version to version in the order of the database. If porcupine had to try
// other orders of concurrent writes, for example while Redis is down, it would not finish.
func register(first int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return first },
		Step: func(state, input, _ any) (bool, any) {
			now, a := state.(int64), input.(access)
			if a.write {
				return a.version == now+1, a.version
			}
			return a.version == now, now
		},
	}
}

// order lets porcupine check, part by part, the validated fresh reads that no failover excuses.
func (k *keyOf) order(in *Input, r *Report) {
	var reads []*history.Op
	for _, op := range k.freshReads {
		if !op.Has(history.Unvalidated) && !k.lost[op] {
			reads = append(reads, op)
		}
	}
	known := []point{{in.Began, 1}}
	for _, op := range reads {
		known = append(known, point{op.End, op.Version})
	}
	newest := newFrontier(append(known, k.settled...))
	for part := range slices.Chunk(reads, partReads) {
		k.part(r, newest, part)
	}
}

// part checks some reads. In the order, a write has ended when a read of any older version would
// be stale. With groups, this may come later than it does for the version before. Many concurrent
// reads, for example while Redis is down, have too many possible orders. Then part checks the two
// halves.
func (k *keyOf) part(r *Report, newest frontier, reads []*history.Op) {
	from, to := reads[0].Start, int64(0)
	first := newest.before(from)
	var ops []porcupine.Operation
	for i, op := range reads {
		ops = append(ops, porcupine.Operation{ClientId: i, Input: access{version: op.Version}, Call: op.Start,
			Return: op.End})
		to = max(to, op.End)
	}
	for v := int(first) + 1; v <= len(k.begun) && k.begunAt(int64(v)) <= to; v++ { // later writes came later
		ops = append(ops, porcupine.Operation{ClientId: len(ops), Input: access{write: true, version: int64(v)},
			Call: k.begunAt(int64(v)), Return: k.settled[v-1].at})
	}
	if time.Since(r.began) > allTimeout {
		r.Unchecked++
		return
	}
	switch porcupine.CheckOperationsTimeout(register(first), ops, partTimeout) {
	case porcupine.Illegal:
		r.violation(Order, reads[0], 0, from)
	case porcupine.Unknown:
		if len(reads) > fewReads {
			k.part(r, newest, reads[:len(reads)/2])
			k.part(r, newest, reads[len(reads)/2:])
			return
		}
		r.Unchecked++
	}
	r.Linearizable += len(ops)
}
