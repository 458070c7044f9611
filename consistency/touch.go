package consistency

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/cacheaside/cacheaside"
)

// Touch adds keys to those of the Update or WriteThrough whose ctx this is, or from whose ctx it is
// made: for keys that only the transaction finds out, as by the old e-mail address of a user. Touch
// is safe for concurrent use until the function of the Update has returned, and does no I/O.
//
// A key that cannot be one (see cacheaside.Key.Check) is an error, and fails the Update, too. Any
// other error means that there is no such Update, or that the Update is over: nobody will
// invalidate the keys.
func Touch(ctx context.Context, keys ...cacheaside.Key) error {
	t, ok := ctx.Value(touchedKey{}).(*touched)
	if !ok {
		return errors.New("consistency: Touch: ctx is not that of an Update")
	}
	return t.add(keys)
}

type touchedKey struct{}

// touched are the keys of a write.
type touched struct {
	mu   sync.Mutex
	keys []cacheaside.Key // each once
	seen map[cacheaside.Key]struct{}
	err  error // of the first that is none
	over bool
}

func (t *touched) add(keys []cacheaside.Key) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen == nil {
		t.seen = make(map[cacheaside.Key]struct{}, len(keys))
	}
	if t.over {
		return errors.New("consistency: Touch: the Update is over")
	}
	for _, k := range keys {
		if err := k.Check(); err != nil {
			if t.err == nil {
				t.err = err
			}
			return err
		}
		if k.Version = cmp.Or(k.Version, "1"); k.All { // so that equal ones are
			k.Version, k.Text = "", ""
		}
		if _, again := t.seen[k]; !again {
			t.seen[k] = struct{}{}
			t.keys = append(t.keys, k)
		}
	}
	return nil
}

// end returns the keys; there will be no more.
func (t *touched) end() ([]cacheaside.Key, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	return t.keys, t.err
}
