package parking

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/cacheaside/cacheaside/canal/internal/storage"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// A File is a Parking that appends to a file: one line of JSON for each Parked, in the format of
// Parked.MarshalJSON. It is safe for concurrent use by one process.
type File struct {
	path string
	mu   sync.Mutex
}

// NewFile returns a File that appends to the file path. Park creates the file if it does not
// exist, readable by its owner only, because it contains rows in clear text. NewFile does no I/O.
func NewFile(path string) *File { return &File{path: path} }

// Park appends p, and returns when it is synced to the disk.
func (f *File) Park(_ context.Context, p Parked) error {
	line, err := p.MarshalJSON()
	if err != nil {
		return wording.Errorf("canal: parking: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.append()
	if err != nil {
		return wording.Errorf("canal: parking: %w", err)
	}
	if !endsWithNewline(file) { // a line that was cut off by a crash must not corrupt this one
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
		return wording.Errorf("canal: parking: %w", err)
	}
	return nil
}

// Check returns an error if nothing can be parked, for example because the directory does not
// exist. A Consumer calls it when it becomes active, so that the problem is reported before a
// change has to be parked.
func (f *File) Check(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.append()
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return wording.Errorf("canal: parking: %w", err)
	}
	return nil
}

// append opens the file for appending. A new file survives a crash only after its directory was
// synced.
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

// endsWithNewline reports whether the file is empty or ends with a complete line.
func endsWithNewline(file *os.File) bool {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return true
	}
	last := []byte{0}
	_, err = file.ReadAt(last, info.Size()-1)
	return err == nil && last[0] == '\n'
}
