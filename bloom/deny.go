package bloom

import "context"

// DenyList tells which keys are on a list, such as blocked e-mail addresses: most keys are not, and
// a filter of the list says so without asking the list. A DenyList is safe for concurrent use if
// its filter and check are.
type DenyList struct {
	filter Filter
	check  func(ctx context.Context, key string) (bool, error)
}

// NewDenyList makes a DenyList of a filter of all keys that are denied, and check, which looks a
// key up in the list itself, which is exact. check is asked for the few keys of which the filter
// says "maybe", so that no key is denied for a false positive. A nil check denies them: one in a
// hundred of the keys that are not on the list, at a rate of 1 %, and all of these while the filter
// is not complete or cannot be asked.
//
// The filter must have a key before it is to be denied for certain (Filter.AddMany, Admit), and
// forgets a key that was taken off the list with the next Rebuild; until then check says that the
// key is not denied.
//
// The filter compares keys byte for byte. Normalise a key before Denied: if the list has
// "ada@example.com", the key "Ada@example.com" is not denied, whatever check would say.
func NewDenyList(filter Filter, check func(ctx context.Context, key string) (bool, error)) *DenyList {
	return &DenyList{filter: filter, check: check}
}

// Denied tells whether key is on the list. If check returns an error, Denied returns true, with the
// error: in doubt it denies; the caller may decide otherwise. A filter that could not be asked is
// no error where check can say; without a check that error is returned, with true.
func (d *DenyList) Denied(ctx context.Context, key string) (bool, error) {
	maybe, err := d.filter.MightContain(ctx, key)
	if !maybe && err == nil {
		return false, nil
	}
	if d.check == nil {
		return true, err
	}
	denied, failed := d.check(ctx, key)
	if failed != nil {
		return true, failed
	}
	if !denied && err == nil {
		d.filter.NotFound(1)
	}
	return denied, nil
}
