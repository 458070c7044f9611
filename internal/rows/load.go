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
	errSeveralRows = errors.New("the load function returned different rows for this key, under several keys that have its text")
	errKeyChanged  = errors.New("the key was changed while it was being loaded")
)

// OneByOne makes a load function for many keys of one that loads one row. It is called with one
// key.
func OneByOne[K comparable, V any](load func(context.Context, K) (V, error)) func(ctx context.Context, keys []K) (map[K]V, error) {
	return func(ctx context.Context, keys []K) (map[K]V, error) {
		v, err := load(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		return map[K]V{keys[0]: v}, nil
	}
}

// query returns the call of the load function with the keys of rounds.
func (r *Reader[K, V]) query(rounds []*fetch.Round) source.Query {
	keys := make([]K, len(rounds))
	for i, of := range rounds {
		keys[i] = keyOf[K](of)
	}
	var texts []string
	if r.Keys.byText {
		texts = fetch.Texts(rounds)
	}
	return func(ctx context.Context) source.Returned {
		arg := slices.Clone(keys) // which it may sort
		values, err := r.options.Load(ctx, arg)
		a := r.assignReplies(keys, values, err)
		if r.Keys.byText {
			r.refuseChanged(&a, keys, texts)
		}
		return a
	}
}

// answer sorts what a load function has returned by the keys that it was called with. It runs where
// the load function ran, so that the methods of an error that hang are a load that hangs.
func (r *Reader[K, V]) assignReplies(keys []K, values map[K]V, err error) source.Returned {
	bound := errtree.Shared()
	err = bound(err) // before anything walks it
	all, partial := r.options.Failed(err)
	var errs map[K]error
	for key, err := range all {
		if errs == nil {
			errs = make(map[K]error, len(all))
		}
		errs[key] = bound(err)
	}
	a := source.Returned{Replies: make([]source.Reply, len(keys)), Unasked: len(values), Err: err}
	open := 0 // keys for which nothing was returned
	for i, key := range keys {
		value, found := values[key]
		if found {
			a.Unasked--
		}
		a.Replies[i] = source.Reply{Value: &value, Found: found, Err: err}
		own := errs[key]
		if partial && (own != nil || found) {
			a.Replies[i].Err, a.Replies[i].Own = own, own != nil
		}
		if !found && own == nil {
			open++
		}
	}
	if open > 0 && (err == nil || partial) && a.Unasked+len(errs) > 0 && !r.Keys.distinct {
		r.matchTexts(&a, keys, values, errs)
	}
	return a
}

// matchTexts gives keys for which nothing was returned what was returned for another key with the
// same text: another spelling, or an equal key that is not ==. A key for which different rows were
// returned in that way fails, and so do all such keys if a returned key has no text: their rows are
// there, perhaps, and must not be taken for absent.
func (r *Reader[K, V]) matchTexts(a *source.Returned, keys []K, values map[K]V, errs map[K]error) {
	open := make(map[string][]int)
	asked := make(map[K]bool, len(keys))
	for i, key := range keys {
		asked[key] = true
		if a.Replies[i].Found || errs[key] != nil {
			continue
		}
		if text, err := r.Keys.Text(key); err == nil {
			open[text] = append(open[text], i)
		}
	}
	match := make(map[string]source.Reply)
	var failed error
	add := func(key K, reply source.Reply) {
		_, text, err := r.Keys.Named(key)
		if err != nil {
			failed = err
			return
		}
		if open[text] == nil {
			return
		}
		if reply.Found && !asked[key] {
			a.Unasked--
		}
		if reply.Err != nil {
			reply = source.Reply{Err: reply.Err, Own: true}
		}
		before, several := match[text]
		if several && (before.Err != nil || reply.Err != nil || !r.same(audit.Copy{Value: before.Value}, audit.Copy{Value: reply.Value})) {
			reply = source.Reply{Err: errSeveralRows, Own: true}
		}
		match[text] = reply
	}
	for key, value := range values {
		add(key, source.Reply{Value: &value, Found: true, Err: errs[key]})
	}
	for key, err := range errs {
		if _, both := values[key]; !both && err != nil {
			add(key, source.Reply{Err: err})
		}
	}
	for text, places := range open {
		reply, ok := match[text]
		if failed != nil {
			reply, ok = source.Reply{Err: failed, Own: true}, true
		}
		if !ok {
			continue
		}
		for _, i := range places {
			a.Replies[i] = reply
		}
		if a.Err == nil {
			a.Err = reply.Err
		}
	}
}

// refuseChanged makes errors of the replies to keys that no longer have the texts by which they
// were read. The rows may be those of other keys.
func (r *Reader[K, V]) refuseChanged(a *source.Returned, keys []K, texts []string) {
	for i, key := range keys {
		if text, err := r.Keys.Text(key); err == nil && text != texts[i] {
			a.Replies[i] = source.Reply{Err: errKeyChanged, Own: true}
			if a.Err == nil {
				a.Err = errKeyChanged
			}
		}
	}
}

// same reports whether two copies of a row are the same, as the loader's codec has them: fields
// that it leaves out do not count, and values that it changes, such as the zone of a time, are made
// alike first.
func (r *Reader[K, V]) same(a, b audit.Copy) bool {
	if a.Null || b.Null {
		return a.Null == b.Null
	}
	first, one := r.throughCodec(Value[V](a.Value))
	second, other := r.throughCodec(Value[V](b.Value))
	if first == nil || second == nil {
		return false
	}
	return bytes.Equal(first, second) || reflect.DeepEqual(one, other) // maps may be written in any order
}

// throughCodec encodes a value, decodes that, and encodes it again: then all its forms are the
// same. Nil if the codec fails. A value that the codec changes is not cached, and compares as what
// it would be changed to.
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
