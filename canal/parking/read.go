package parking

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"

	"github.com/cacheaside/cacheaside/internal/wording"
)

// maxLine is the maximum length in bytes of a line of a File that can be read.
const maxLine = 4 * MaxSize

var (
	errLongLine = fmt.Errorf("longer than %d bytes", maxLine)
	errCutOff   = errors.New("cut off, for example by a crash")
)

// Read iterates over the content of a File. For a line that cannot be read, or that is cut off at
// the end, it yields an error with the line number and none of the content. Then it continues
// with the next line. An error of r ends the iteration.
func Read(r io.Reader) iter.Seq2[Parked, error] {
	return func(yield func(Parked, error) bool) {
		b := bufio.NewReaderSize(r, 64<<10)
		for n := 1; ; n++ {
			line, ended, err := readLine(b)
			if !ended && err != nil && !errors.Is(err, io.EOF) {
				yield(Parked{}, wording.Errorf("canal: parked: line %d: %w", n, err))
				return
			}
			last := errors.Is(err, io.EOF)
			if len(bytes.TrimSpace(line)) > 0 && !yield(readParked(line, n, last)) || last {
				return
			}
		}
	}
}

func readParked(line []byte, n int, last bool) (p Parked, err error) {
	switch err = p.decode(bytes.TrimSpace(line)); {
	case err == nil:
		return p, nil
	case len(line) > maxLine:
		err = errLongLine
	case last:
		err = fmt.Errorf("%w: %w", errCutOff, err)
	}
	return Parked{}, wording.Errorf("canal: parked: line %d: %w", n, err)
}

// readLine reads to the end of a line, and keeps at most maxLine+1 bytes of it. ended reports
// whether the line had an end; otherwise err is the reason.
func readLine(b *bufio.Reader) (line []byte, ended bool, err error) {
	for {
		part, err := b.ReadSlice('\n')
		line = append(line, part[:min(len(part), maxLine+1-len(line))]...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err == nil, err
		}
	}
}

// Read iterates over the content of the file, like the function Read. If the file does not exist,
// there is nothing to read. Read may be used while other goroutines call Park.
//
// Read does not remove changes from the file. To remove them, rename the file, which makes Park
// create a new one, and read the old file with the function Read.
func (f *File) Read() iter.Seq2[Parked, error] {
	return func(yield func(Parked, error) bool) {
		file, size, err := f.open()
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				yield(Parked{}, wording.Errorf("canal: parking: %w", err))
			}
			return
		}
		defer file.Close() //nolint:errcheck // opened for reading
		Read(io.LimitReader(file, size))(yield)
	}
}

// open opens the file, and returns its length at a time when no line is being written.
func (f *File) open() (file *os.File, size int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err = os.Open(f.path)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}
