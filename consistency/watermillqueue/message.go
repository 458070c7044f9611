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
	maxWait    = 24 * time.Hour // items behind it in the topic may wait as long
)

// A record is an item as it is sent.
type record struct {
	Format  int    `json:"v"`
	ID      string `json:"id"`
	Loader  string `json:"loader"`
	Version string `json:"version,omitempty"`
	Text    []byte `json:"key,omitempty"` // base64, because keys need not be UTF-8
	All     bool   `json:"all,omitempty"`
	// Group means that Text is the name of a group. All is set too: a release without groups then
	// invalidates the whole loader.
	Group bool `json:"group,omitempty"`

	// Any is the inverse of Item.Inserting, so that messages of older releases count as Inserting.
	Any      bool          `json:"any,omitempty"`
	Reload   bool          `json:"reload,omitempty"`
	Attempts int           `json:"attempts,omitempty"`
	Again    time.Duration `json:"again,omitempty"`
	After    time.Duration `json:"after,omitempty"` // from At
	At       int64         `json:"at"`              // when the message was published, and
	// Created is when the item was first put, in ns since 1970, by the sender's clock.
	Created int64 `json:"created"`
}

// newRecords returns the records of items, or an error if one of them is invalid.
func newRecords(items []consistency.Item, now time.Time) ([]*record, error) {
	records := make([]*record, len(items))
	for i, item := range items {
		var err error
		if records[i], err = newRecord(item, now); err != nil {
			return nil, fmt.Errorf("watermillqueue: %w", err)
		}
	}
	return records, nil
}

func newRecord(item consistency.Item, now time.Time) (*record, error) {
	if err := item.Key.Check(); err != nil {
		return nil, err
	}
	n := &record{
		Format: format, ID: item.ID,
		Loader: item.Key.Loader, Version: item.Key.Version, Text: []byte(item.Key.Text),
		All: item.Key.All || item.Key.Group, Group: item.Key.Group,
		Any: !item.Inserting, Reload: item.Reload, Attempts: max(item.Attempts, 0),
		Again: max(item.Again, 0), After: max(item.After, 0),
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

func (r *record) check() error {
	if r.Again > maxWait || r.After > maxWait {
		return fmt.Errorf("Item.After and Item.Again: at most %v", maxWait)
	}
	if r.Format != format || r.ID == "" || r.Again < 0 || r.After < 0 || r.Attempts < 0 {
		return errors.New("not an item")
	}
	return r.key().Check()
}

func (r *record) key() cacheaside.Key {
	return cacheaside.Key{
		Loader: r.Loader, Version: r.Version, Text: string(r.Text), All: r.All && !r.Group, Group: r.Group,
	}
}

// message returns the message to publish. Each has a new UUID: a broker such as JetStream can be
// configured to drop a message with a known UUID, and Later acknowledges the previous message
// after it has published this one.
func (r *record) message() (*message.Message, error) {
	payload, err := json.Marshal(r)
	if err == nil && len(payload) > maxPayload {
		err = fmt.Errorf("longer than %d bytes", maxPayload)
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", r.key(), err)
	}
	id := watermill.NewUUID()
	return message.NewMessage(id, payload), nil
}

// decode parses and checks a message. Messages are untrusted.
func decode(payload []byte) (*record, error) {
	if len(payload) > maxPayload {
		return nil, errors.New("too long")
	}
	var n record
	if err := json.Unmarshal(payload, &n); err != nil {
		return nil, err
	}
	if err := n.check(); err != nil {
		return nil, err
	}
	return &n, nil
}
