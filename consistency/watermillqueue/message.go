package watermillqueue

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
)

const (
	format     = 1
	maxPayload = 64 << 10
	maxWait    = 24 * time.Hour // what is behind it may wait as long
)

// note is an item as it is sent.
type note struct {
	Format  int    `json:"v"`
	ID      string `json:"id"`
	Loader  string `json:"loader"`
	Version string `json:"version,omitempty"`
	Text    []byte `json:"key,omitempty"` // in base64: keys need not be UTF-8
	All     bool   `json:"all,omitempty"`

	Any      bool          `json:"any,omitempty"` // any process can do it: not Item.Admit, which is so of messages that do not say
	Reload   bool          `json:"reload,omitempty"`
	Attempts int           `json:"attempts,omitempty"`
	Again    time.Duration `json:"again,omitempty"`
	After    time.Duration `json:"after,omitempty"` // from At
	At       int64         `json:"at"`              // when it was published, and
	Created  int64         `json:"created"`         // when it was first put, in ns since 1970, by the sender's clock
}

// newNotes are what is sent of items, if all of them can be.
func newNotes(items []consistency.Item, now time.Time) ([]*note, error) {
	notes := make([]*note, len(items))
	for i, item := range items {
		var err error
		if notes[i], err = newNote(item, now); err != nil {
			return nil, fmt.Errorf("watermillqueue: %w", err)
		}
	}
	return notes, nil
}

func newNote(item consistency.Item, now time.Time) (*note, error) {
	if err := item.Key.Check(); err != nil {
		return nil, err
	}
	n := &note{
		Format: format, ID: item.ID,
		Loader: item.Key.Loader, Version: item.Key.Version, Text: []byte(item.Key.Text), All: item.Key.All,
		Any: !item.Admit, Reload: item.Reload, Attempts: max(item.Attempts, 0), Again: max(item.Again, 0), After: max(item.After, 0),
		At: now.UnixNano(), Created: now.Add(-item.Age).UnixNano(),
	}
	if n.ID == "" {
		n.ID = watermill.NewUUID()
	}
	if err := n.check(); err != nil {
		return nil, fmt.Errorf("%v: %w", item.Key, err)
	}
	return n, nil
}

func (n *note) check() error {
	if n.Again > maxWait || n.After > maxWait {
		return fmt.Errorf("Item.After and Item.Again: %v at most", maxWait)
	}
	if n.Format != format || n.ID == "" || n.Again < 0 || n.After < 0 || n.Attempts < 0 {
		return errors.New("not an item")
	}
	return n.key().Check()
}

func (n *note) key() cacheaside.Key {
	return cacheaside.Key{Loader: n.Loader, Version: n.Version, Text: string(n.Text), All: n.All}
}

// message is what is published: each time with another UUID, since JetStream, for one, can be told
// to drop a message whose UUID it has seen, and the one seen is acknowledged next.
func (n *note) message() (*message.Message, error) {
	payload, err := json.Marshal(n)
	if err == nil && len(payload) > maxPayload {
		err = fmt.Errorf("longer than %d bytes", maxPayload)
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", n.key(), err)
	}
	id := watermill.NewUUID()
	return message.NewMessage(id, payload), nil
}

// decode returns what another process has sent; anybody may have sent anything.
func decode(payload []byte) (*note, error) {
	if len(payload) > maxPayload {
		return nil, errors.New("too long")
	}
	var n note
	if err := json.Unmarshal(payload, &n); err != nil {
		return nil, err
	}
	if err := n.check(); err != nil {
		return nil, err
	}
	return &n, nil
}
