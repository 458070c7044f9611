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
	"github.com/cacheaside/cacheaside/canal/internal/kept"
)

// FileCheckpoint is a Checkpoint in a file of its own. It is safe for concurrent use.
type FileCheckpoint struct {
	path string
	mu   sync.Mutex
}

// NewFileCheckpoint keeps the position in the file of this path, in a folder that exists, and on a
// disk that outlives the process. It does no I/O. Consumers of which one takes over from another
// must see the same file.
func NewFileCheckpoint(path string) *FileCheckpoint { return &FileCheckpoint{path: path} }

const (
	fileHead  = "cacheaside checkpoint 1"
	fileLimit = event.MaxPosition + 256
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// encodeFile: a line each of what it is, the token, and the checksum of what follows; then the
// position.
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
		return "", 0, errors.New("its token is not a number")
	}
	if len(parts[3]) > event.MaxPosition || string(parts[2]) != fmt.Sprintf("%08x", crc32.Checksum(parts[3], crcTable)) {
		return "", 0, errors.New("damaged")
	}
	return event.Position(parts[3]), token, nil
}

// Load returns none if there is no file. A file that is damaged, or something else, is an error:
// remove it to begin anew, which invalidates everything that is bound.
func (c *FileCheckpoint) Load(context.Context) (event.Position, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, _, err := c.read()
	return p, err
}

func (c *FileCheckpoint) read() (p event.Position, token int64, err error) {
	f, err := os.Open(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(c.path)); err != nil { // as where a disk is not mounted: nobody knows what is on it
			return "", 0, fmt.Errorf("canal: the checkpoint's folder: %w", err)
		}
		return "", 0, nil
	}
	if err != nil {
		return "", 0, fmt.Errorf("canal: checkpoint: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was read only
	b, err := io.ReadAll(io.LimitReader(f, fileLimit+1))
	if err == nil && len(b) > fileLimit {
		err = errors.New("it is too long")
	}
	if err == nil {
		p, token, err = decodeFile(b)
	}
	if err != nil {
		return "", 0, fmt.Errorf("canal: checkpoint %s: %w", c.path, err)
	}
	return p, token, nil
}

// Save writes a new file, syncs it to the disk, and puts it in the place of the old one. Where a
// holder of a greater token has saved, Save returns an error. A process that stands still between
// the look at the old file and the rename may put back an older position: then the changes after
// that position are done again, which does no harm.
func (c *FileCheckpoint) Save(_ context.Context, p event.Position, token int64) (err error) {
	if len(p) > event.MaxPosition {
		return fmt.Errorf("canal: checkpoint: a position of %d bytes: %d at most", len(p), event.MaxPosition)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, before, err := c.read()
	if err != nil {
		return err
	}
	if before > token {
		return fmt.Errorf("canal: checkpoint %s: %w", c.path, ErrSuperseded)
	}
	if err := replace(c.path, encodeFile(p, token)); err != nil {
		return fmt.Errorf("canal: checkpoint: %w", err)
	}
	return nil
}

// replace puts b in the place of a file's content, all or nothing, also when the machine crashes.
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
	return kept.SyncFolder(folder)
}
