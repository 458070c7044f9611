package rows

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/errtree"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/source"
)

var (
	errSeveralRows = errors.New(
		"the load function returned different rows for this key, under several keys that have its text")
	errKeyChanged = errors.New("the key was changed while it was being loaded")
)

// OneByOne converts a load function of one row to a load function of many keys, which must be
// called with one key.
func OneByOne[K comparable, V any](
	load func(context.Context, K) (V, error),
) func(ctx context.Context, keys []K) (map[K]V, error) {
	return func(ctx context.Context, keys []K) (map[K]V, error) {
		v, err := load(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		return map[K]V{keys[0]: v}, nil
	}
}

// query returns the calls of the load function with the keys of rounds.
func (r *Reader[K, V]) query(rounds []*fetch.Round) source.Query {
	keys := make([]K, len(rounds))
	for i, round := range rounds {
		keys[i] = keyOf[K](round)
	}
	var texts []string
	if r.Keys.byText {
		texts = fetch.Texts(rounds)
	}
	return func(ctx context.Context, first, end int) source.Returned {
		arg := slices.Clone(keys[first:end]) // because the load function may sort it
		values, err := r.options.Load(ctx, arg)
		a := r.assignReplies(keys[first:end], values, err)
		if r.Keys.byText {
			r.refuseChanged(&a, keys[first:end], texts[first:end])
		}
		return a
	}
}

// assignReplies assigns what the load function has returned to the keys of the call. It runs
// within the time limit of the load, because methods of the returned errors may hang.
func (r *Reader[K, V]) assignReplies(keys []K, values map[K]V, err error) source.Returned {
	bound := errtree.Shared()
	err = bound(err) // before any other use of the error
	all, partial := r.options.Failed(err)
	var errs map[K]error
	for key, err := range all {
		if errs == nil {
			errs = make(map[K]error, len(all))
		}
		errs[key] = bound(err)
	}
	a := source.Returned{Replies: make([]source.Reply, len(keys)), Unasked: len(values), Err: err}
	rows := make([]V, len(keys))
	open := 0 // keys for which the load function returned nothing
	for i, key := range keys {
		value, found := values[key]
		if found {
			a.Unasked--
		}
		rows[i] = value
		a.Replies[i] = source.Reply{Value: &rows[i], Found: found, Err: err}
		keyErr := errs[key]
		if partial && (keyErr != nil || found) {
			a.Replies[i].Err, a.Replies[i].OfKey = keyErr, keyErr != nil
		}
		if !found && keyErr == nil {
			open++
		}
	}
	if open > 0 && (err == nil || partial) && a.Unasked+len(errs) > 0 && !r.Keys.distinct {
		r.matchTexts(&a, keys, values, errs)
	}
	return a
}

// matchTexts handles keys for which the load function returned nothing, but may have returned
// something for another key with the same text: another spelling, or an equal key that is not ==.
// If it returned different rows for keys of one text, these keys fail. If a returned key has no
// text, all such keys fail, because the row may be theirs, and they must not count as absent.
func (r *Reader[K, V]) matchTexts(a *source.Returned, keys []K, values map[K]V, errs map[K]error) {
	m := textMatch[K, V]{reader: r, asked: make(map[K]bool, len(keys)), open: make(map[string][]int),
		replies: make(map[string]source.Reply)}
	for i, key := range keys {
		m.asked[key] = true
		if a.Replies[i].Found || errs[key] != nil {
			continue
		}
		if text, err := r.Keys.Text(key); err == nil {
			m.open[text] = append(m.open[text], i)
		}
	}
	for key, value := range values {
		if m.add(key, source.Reply{Value: &value, Found: true, Err: errs[key]}) && !m.asked[key] {
			a.Unasked--
		}
	}
	for key, err := range errs {
		if _, both := values[key]; !both && err != nil {
			m.add(key, source.Reply{Err: err})
		}
	}
	m.assign(a)
}

// A textMatch matches what the load function has returned to the keys of the call by their texts.
type textMatch[K comparable, V any] struct {
	reader  *Reader[K, V]
	asked   map[K]bool
	open    map[string][]int        // indexes of the keys for which nothing was returned, by text
	replies map[string]source.Reply // what was returned for other keys with these texts
	failed  error                   // a returned key has no text
}

// add adds what the load function has returned for a key. It reports whether a key without a reply
// has the same text.
func (t *textMatch[K, V]) add(key K, reply source.Reply) (matches bool) {
	_, text, err := t.reader.Keys.Named(key)
	if err != nil {
		t.failed = err
		return false
	}
	if t.open[text] == nil {
		return false
	}
	if reply.Err != nil {
		reply = source.Reply{Err: reply.Err, OfKey: true}
	}
	if other, ok := t.replies[text]; ok && !t.equal(other, reply) {
		reply = source.Reply{Err: errSeveralRows, OfKey: true}
	}
	t.replies[text] = reply
	return true
}

// equal reports whether two replies have the same row. It is false for errors.
func (t *textMatch[K, V]) equal(one, other source.Reply) bool {
	return one.Err == nil && other.Err == nil &&
		t.reader.same(audit.Copy{Value: one.Value}, audit.Copy{Value: other.Value})
}

// assign sets the replies of the keys for which nothing was returned.
func (t *textMatch[K, V]) assign(a *source.Returned) {
	for text, indexes := range t.open {
		reply, ok := t.replies[text]
		if t.failed != nil {
			reply, ok = source.Reply{Err: t.failed, OfKey: true}, true
		}
		if !ok {
			continue
		}
		for _, i := range indexes {
			a.Replies[i] = reply
		}
		if a.Err == nil {
			a.Err = reply.Err
		}
	}
}

// refuseChanged replaces the replies to keys whose texts have changed during the load by errors.
// The rows may be of other keys.
func (r *Reader[K, V]) refuseChanged(a *source.Returned, keys []K, texts []string) {
	for i, key := range keys {
		if text, err := r.Keys.Text(key); err == nil && text != texts[i] {
			a.Replies[i] = source.Reply{Err: errKeyChanged, OfKey: true}
			if a.Err == nil {
				a.Err = errKeyChanged
			}
		}
	}
}

// same reports whether the loader's codec treats two copies of a row as equal. It ignores fields
// that the codec omits, and normalizes values that the codec changes, such as the zone of a time.
func (r *Reader[K, V]) same(a, b audit.Copy) bool {
	if a.Null || b.Null {
		return a.Null == b.Null
	}
	first, one := r.throughCodec(Value[V](a.Value))
	second, other := r.throughCodec(Value[V](b.Value))
	if first == nil || second == nil {
		return false
	}
	return bytes.Equal(first, second) || reflect.DeepEqual(one, other) // the order of a map's encoding may vary
}

// throughCodec encodes, decodes and encodes a value again, which normalizes it. It returns nil if
// the codec fails. A value that the codec changes is not cached, and is compared in its changed
// form.
func (r *Reader[K, V]) throughCodec(v V) (encoded []byte, decoded V) {
	lossy := r.options.Codec.Lossy()
	p, err := lossy.Encode(v)
	if err != nil {
		return nil, decoded
	}
	again, err := lossy.Decode(p)
	if err != nil {
		return nil, decoded
	}
	if p, err = lossy.Encode(*again); err != nil {
		return nil, decoded
	}
	return append([]byte{byte(p.Codec)}, p.Bytes...), *again
}
