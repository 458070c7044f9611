package canal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/storage"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// A FileCheckpoint is a Checkpoint in its own file. It is safe for concurrent use.
type FileCheckpoint struct {
	path string
	mu   sync.Mutex
}

// NewFileCheckpoint returns a FileCheckpoint that stores the position in the file path. The
// directory must exist, on a disk that outlives the process. If Consumers take over from each
// other, all of them must use the same file. NewFileCheckpoint does no I/O.
func NewFileCheckpoint(path string) *FileCheckpoint { return &FileCheckpoint{path: path} }

const (
	fileHead  = "cacheaside checkpoint 1"
	fileLimit = event.MaxPosition + 256
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// encodeFile returns the content of the file. The first three lines are the header, the token,
// and the checksum of the position. The position follows.
func encodeFile(p event.Position, token int64) []byte {
	return fmt.Appendf(nil, "%s\n%d\n%08x\n%s", fileHead, token, crc32.Checksum([]byte(p), crcTable), p)
}

func decodeFile(b []byte) (p event.Position, token int64, err error) {
	parts := bytes.SplitN(b, []byte("\n"), 4)
	if len(parts) != 4 || string(parts[0]) != fileHead {
		return "", 0, errors.New("not a checkpoint")
	}
	token, err = strconv.ParseInt(string(parts[1]), 10, 64)
	if err != nil {
		return "", 0, errors.New("the token is not a number")
	}
	if len(parts[3]) > event.MaxPosition ||
		string(parts[2]) != fmt.Sprintf("%08x", crc32.Checksum(parts[3], crcTable)) {
		return "", 0, errors.New("damaged")
	}
	return event.Position(parts[3]), token, nil
}

// Load returns "" if the file does not exist. A damaged or unrelated file is an error. To start
// again after such an error, remove the file; the Consumer then invalidates everything that is
// bound.
func (f *FileCheckpoint) Load(context.Context) (event.Position, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, _, err := f.read()
	return p, err
}

func (f *FileCheckpoint) read() (p event.Position, token int64, err error) {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(f.path)); err != nil {
			// for example, the disk is not mounted: its content is unknown
			return "", 0, wording.Errorf("canal: the directory of the checkpoint: %w", err)
		}
		return "", 0, nil
	}
	if err != nil {
		return "", 0, wording.Errorf("canal: checkpoint: %w", err)
	}
	defer file.Close() //nolint:errcheck // opened for reading
	b, err := io.ReadAll(io.LimitReader(file, fileLimit+1))
	if err == nil && len(b) > fileLimit {
		err = errors.New("the file is too long")
	}
	if err == nil {
		p, token, err = decodeFile(b)
	}
	if err != nil {
		return "", 0, wording.Errorf("canal: checkpoint %s: %w", f.path, err)
	}
	return p, token, nil
}

// Save writes a new file, syncs it to the disk, and renames it to the path. It returns
// ErrSuperseded if the file was saved with a greater token. A process that is suspended between
// reading the old file and the rename can restore an older position. The changes after that
// position are then processed again, which does no harm.
func (f *FileCheckpoint) Save(_ context.Context, p event.Position, token int64) (err error) {
	if len(p) > event.MaxPosition {
		return fmt.Errorf("canal: checkpoint: the position has %d bytes, the maximum is %d", len(p), event.MaxPosition)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, before, err := f.read()
	if err != nil {
		return err
	}
	if before > token {
		return wording.Errorf("canal: checkpoint %s: %w", f.path, ErrSuperseded)
	}
	if err := replace(f.path, encodeFile(p, token)); err != nil {
		return wording.Errorf("canal: checkpoint: %w", err)
	}
	return nil
}

// replace replaces the content of a file atomically, even if the machine crashes.
func replace(path string, b []byte) (err error) {
	folder := filepath.Dir(path)
	f, err := os.CreateTemp(folder, filepath.Base(path)+".*.new")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return storage.SyncFolder(folder)
}
