package consistency

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/cacheaside/cacheaside"
)

// Touch adds keys to the Update or WriteThrough from whose context ctx is derived. It is for keys
// that are only known inside the transaction, such as the old e-mail address of a user. Touch
// does no I/O, and is safe for concurrent use until the function of the Update has returned.
//
// An invalid key (see cacheaside.Key.Check) is an error, which also fails the Update. Any other
// error means that ctx does not belong to an Update, or that its function has returned: the keys
// will not be invalidated.
func Touch(ctx context.Context, keys ...cacheaside.Key) error {
	t, ok := ctx.Value(touchedKey{}).(*touched)
	if !ok {
		return errors.New("consistency: Touch: ctx is not derived from the context of an Update")
	}
	return t.add(keys)
}

type touchedKey struct{}

// touched collects the keys of a write.
type touched struct {
	mu     sync.Mutex
	keys   []cacheaside.Key // without duplicates
	seen   map[cacheaside.Key]struct{}
	err    error // of the first invalid key
	closed bool
}

func (t *touched) add(keys []cacheaside.Key) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen == nil {
		t.seen = make(map[cacheaside.Key]struct{}, len(keys))
	}
	if t.closed {
		return errors.New("consistency: Touch: the function of the Update has returned")
	}
	for _, k := range keys {
		if err := k.Check(); err != nil {
			if t.err == nil {
				t.err = err
			}
			return err
		}
		switch { // so that equal keys compare equal
		case k.All:
			k.Version, k.Text = "", ""
		case k.Group:
			k.Version = ""
		default:
			k.Version = cmp.Or(k.Version, "1")
		}
		if _, again := t.seen[k]; !again {
			t.seen[k] = struct{}{}
			t.keys = append(t.keys, k)
		}
	}
	return nil
}

// close returns the keys. Later calls of add fail.
func (t *touched) close() ([]cacheaside.Key, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return t.keys, t.err
}
