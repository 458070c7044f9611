package rows

import (
	"context"
	"reflect"
	"strconv"

	"github.com/cacheaside/cacheaside/internal/source"
)

// A database may find one row under several keys: it compares text with a number ("2x" finds 2), or
// by a collation ("ADA" finds "ada"). A filter lacks all of them except the one that its source
// lists. Anyone can ask for such keys, so they must not speak against the source. No outsider
// chooses the keys that a source lists: if these have rows, it is the right one.

// withoutSpellings returns those of missing, the keys that a filter lacks of so many, that can only
// be rows which its source leaves out.
func (r *Reader[K, V]) withoutSpellings(ctx context.Context, missing []K, of int, listed []string) []K {
	if len(missing) == 0 || !r.Keys.shared { // keys without text have one spelling
		return missing
	}
	numbers := len(listed) > 0
	for _, text := range listed {
		numbers = numbers && isNumber(text)
	}
	var rows []K
	for _, key := range missing {
		if text, _ := r.Keys.Text(key); numbers && isNumber(text) {
			rows = append(rows, key)
		}
	}
	if len(rows) == len(missing) || !r.lists(ctx, listed, of, len(missing)) {
		return missing
	}
	r.cache.Warn("the database finds rows for keys that the filter's source does not list: it may compare text with numbers, or by a collation; make such keys one before the read, or check the source", r.options.Fetch.Name, nil)
	return rows
}

// isNumber reports whether text is an integer as the database writes it.
func isNumber(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == text
}

// lists reports whether a source lists keys of this loader's rows: at least a quarter of those
// listed have one. (Not more, because loaders of other keys may share the filter.) If no key can be
// made of their text, it goes by the rows that loads have returned, of which the filter must have
// at least half.
func (r *Reader[K, V]) lists(ctx context.Context, listed []string, of, missing int) bool {
	if parse := r.parser(); parse != nil && len(listed) > 0 {
		var keys []K
		for _, text := range listed {
			if key, ok := parse(text); ok {
				keys = append(keys, key)
			}
		}
		return 4*r.existing(ctx, keys) >= len(listed)
	}
	return 2*missing <= of
}

// parser returns what makes keys of texts, or nil.
func (r *Reader[K, V]) parser() func(text string) (K, bool) {
	if r.Keys.Parse != nil || reflect.TypeFor[K]().Kind() != reflect.String {
		return r.Keys.Parse
	}
	return func(text string) (key K, ok bool) { // a text of LoaderOptions.Key may be a key, too
		reflect.ValueOf(&key).Elem().SetString(text)
		again, err := r.Keys.Text(key)
		return key, err == nil && again == text
	}
}

// existing returns how many of keys have a row.
func (r *Reader[K, V]) existing(ctx context.Context, keys []K) (n int) {
	for len(keys) > 0 {
		part := keys[:min(len(keys), r.chunk())]
		keys = keys[len(part):]
		for _, row := range r.LoadAlone(ctx, part, source.Call{Background: true}) {
			if row.Err == nil && !row.Null {
				n++
			}
		}
	}
	return n
}
