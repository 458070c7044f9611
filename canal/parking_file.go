package canal

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
	"unicode/utf8"
)

// FileParking is a Parking in a file: a line of JSON for each. It is safe for concurrent use by one process.
type FileParking struct {
	path string
	mu   sync.Mutex
}

// NewFileParking appends to the file of this path, and makes it where there is none, to be read by its owner only, for it shows rows in clear. It does no I/O.
func NewFileParking(path string) *FileParking { return &FileParking{path: path} }

// Park appends p, and returns when it has reached the disk.
func (f *FileParking) Park(_ context.Context, p Parked) error {
	line, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("canal: parking: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("canal: parking: %w", err)
	}
	if !whole(file) { // a line that a crash has cut off must not spoil this one
		line = append([]byte("\n"), line...)
	}
	_, err = file.Write(append(line, '\n'))
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("canal: parking: %w", err)
	}
	return nil
}

// whole tells whether the file ends with the end of a line.
func whole(file *os.File) bool {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return true
	}
	last := []byte{0}
	_, err = file.ReadAt(last, info.Size()-1)
	return err == nil && last[0] == '\n'
}

// MarshalJSON shows all that is in it: rows as objects of the columns that are known, values as text, NULL as null, and what is no UTF-8 as {"base64": …}.
func (p Parked) MarshalJSON() ([]byte, error) {
	type shown struct {
		Time    time.Time      `json:"time"`
		Binding string         `json:"binding,omitempty"`
		Reason  string         `json:"reason"`
		Kind    string         `json:"kind,omitempty"`
		Schema  string         `json:"schema,omitempty"`
		Table   string         `json:"table,omitempty"`
		At      *time.Time     `json:"committed,omitempty"`
		Before  map[string]any `json:"before,omitempty"`
		After   map[string]any `json:"after,omitempty"`
		Message any            `json:"message,omitempty"`
	}
	c := p.Change
	s := shown{Time: p.Time, Binding: p.Binding, Reason: p.Reason, Schema: c.Schema, Table: c.Table, Before: c.Before.shown(), After: c.After.shown()}
	if c.Kind != 0 {
		s.Kind = c.Kind.String()
	}
	if !c.Time.IsZero() {
		s.At = &c.Time
	}
	if p.Message != nil {
		s.Message = text(string(p.Message))
	}
	return json.Marshal(s)
}

func (r Row) shown() map[string]any {
	if !r.Exists() {
		return nil
	}
	all := make(map[string]any, len(r.values))
	for i, v := range r.values {
		switch {
		case v.IsNull():
			all[r.columns.names[i]] = nil
		case v.Known():
			all[r.columns.names[i]] = text(v.Text())
		}
	}
	return all
}

func text(s string) any {
	if utf8.ValidString(s) {
		return s
	}
	return map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(s))}
}
