package canal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/logitem"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// outboxName is the Parked.Binding and the Alert.Binding of items of an outbox.
const outboxName = "outbox"

// outbox is the outbox of BindOutbox.
type outbox struct {
	namespace string
	prefix    string // of the messages
}

// BindOutbox returns a Binding that applies the items that Writers have written into the log
// (pglogical.Outbox): it invalidates their keys, and adds the keys of inserted rows to the filters
// of their loaders. namespace is that of the outbox; "" means the Options.Prefix of the Cache.
//
// The Source must be a MessageSource. Options.Parking is required. A Consumer can have one such
// Binding, in addition to others or alone.
//
// Create all loaders whose keys are in the outbox before Run. The first start and a lost position
// invalidate all loaders that the Cache has at that moment, and no others. Run returns an ErrSetup
// if it has none. Keys of an unknown loader are invalidated, with an alert. If the filter of their
// loader may lack them (consistency.Item.Inserting), the message is also parked. A message that
// cannot be read may concern any key: it is parked, and all loaders of the Cache are invalidated.
func BindOutbox(namespace string) Binding {
	return Binding{name: outboxName, outbox: &outbox{namespace: namespace}}
}

// bindOutbox prepares the Consumer for the messages of its outbox.
func (c *Consumer) bindOutbox(o *outbox) error {
	if _, ok := c.source.(MessageSource); !ok {
		return errors.New("BindOutbox needs a MessageSource, such as that of pglogical: this Source does not deliver " +
			"the items of an outbox")
	}
	if c.outbox != nil {
		return errors.New("BindOutbox: a Consumer has one outbox")
	}
	namespace := cmp.Or(o.namespace, writeside.Of(c.cache).Prefix())
	if err := logitem.CheckNamespace(namespace); err != nil {
		return fmt.Errorf("BindOutbox: the namespace %w", err)
	}
	c.outbox = &outbox{namespace, logitem.Prefix(namespace)}
	return nil
}

// checkOutbox returns an error if there is an outbox and the Cache has no loader: where items may
// have been missed, the Consumer would invalidate nothing, and save the position.
func (c *Consumer) checkOutbox() error {
	if c.outbox != nil && len(writeside.Of(c.cache).Loaders()) == 0 {
		return fmt.Errorf("%w: BindOutbox: the Cache has no loader, so that lost items could not be repaired: create "+
			"all loaders of the outbox before Run", ErrSetup)
	}
	return nil
}

// messages returns the prefixes of the messages that the Consumer needs.
func (c *Consumer) messages() []string {
	if c.outbox == nil {
		return nil
	}
	return []string{c.outbox.prefix}
}

// affectsOutbox reports whether items may have been missed, because a change concerns all tables.
func (c *Consumer) affectsOutbox(change *event.Change) bool {
	return c.outbox != nil && affectsWholeTable(change) && change.Schema == "" && change.Table == ""
}

// invalidateOutbox adds all keys of all loaders of the Cache to w, if there is an outbox.
func (c *Consumer) invalidateOutbox(w *work) {
	if c.outbox == nil {
		return
	}
	for _, name := range writeside.Of(c.cache).Loaders() {
		w.invalidate(cacheaside.Key{Loader: name, All: true})
	}
}

// addMessage adds the work for a message to w. It reports whether a filter may have missed a row,
// because the message was not understood.
func (s *session) addMessage(w *work, m *event.Message) (gap bool) {
	if s.outbox == nil || m.Prefix != s.outbox.prefix {
		return false
	}
	items, err := logitem.Decode(m.Content)
	if err != nil {
		s.invalidateOutbox(w)
		s.rejectMessage(w, m, true, fmt.Errorf("a message of the outbox, of %d bytes (#%016x), cannot be read: %w",
			len(m.Content), xxhash.Sum64(m.Content), err))
		return slices.ContainsFunc(writeside.Of(s.cache).Loaders(), func(name string) bool {
			_, filter := writeside.Of(s.cache).Loader(name)
			return filter
		})
	}
	var unknown []string
	notAdmitted := false
	for _, item := range items {
		has, _ := writeside.Of(s.cache).Loader(item.Key.Loader)
		switch {
		case has && item.Inserting:
			w.admit(item.Key)
			continue
		case !has && len(unknown) < maxUnknown && !slices.Contains(unknown, item.Key.Loader):
			unknown = append(unknown, item.Key.Loader)
		}
		w.invalidate(item.Key)
		notAdmitted = notAdmitted || !has && item.Inserting
	}
	if len(unknown) > 0 {
		s.rejectMessage(w, m, notAdmitted, fmt.Errorf("this process does not have the loaders of an outbox: %s",
			strings.Join(unknown, ", ")))
	}
	return false
}

// maxUnknown is the maximum number of names of unknown loaders in an error.
const maxUnknown = 10

// rejectMessage reports a message that was not, or not completely, understood.
func (s *session) rejectMessage(w *work, m *event.Message, park bool, reason error) {
	s.update(func(s *Stats) { s.Misunderstood++ })
	s.alert(AlertNotUnderstood, outboxName, reason)
	if park {
		w.parked = append(w.parked,
			toPark{parking.Parked{Binding: outboxName, Message: m.Content, Reason: reason.Error()}, reason})
	}
}
