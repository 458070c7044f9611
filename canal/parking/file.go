package parking

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/cacheaside/cacheaside/canal/internal/storage"
)

// File is a Parking in a file: a line of JSON for each, as Parked.MarshalJSON has it. It is safe
// for concurrent use by one process.
type File struct {
	path string
	mu   sync.Mutex
}

// NewFile appends to the file of this path, and makes it where there is none, to be read by its
// owner only, for it shows rows in clear. It does no I/O.
func NewFile(path string) *File { return &File{path: path} }

// Park appends p, and returns when it has reached the disk.
func (f *File) Park(_ context.Context, p Parked) error {
	line, err := p.MarshalJSON()
	if err != nil {
		return fmt.Errorf("canal: parking: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.append()
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

// Check returns why nothing could be parked, as where there is no such folder. A Consumer calls it
// when it begins, so that this is known before it is needed.
func (f *File) Check(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.append()
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return fmt.Errorf("canal: parking: %w", err)
	}
	return nil
}

// append opens the file to be written at its end. One that is new survives a crash only when its
// folder has reached the disk.
func (f *File) append() (*os.File, error) {
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err == nil && info.Size() > 0 {
		return file, nil
	}
	if err := storage.SyncFolder(filepath.Dir(f.path)); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
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
