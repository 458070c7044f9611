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
)

// maxLine is how long a line of a File may be, to be read.
const maxLine = 4 * MaxSize

var (
	errLongLine = fmt.Errorf("longer than %d bytes", maxLine)
	errCutOff   = errors.New("cut off, as by a crash")
)

// Read goes through what a File has written. For a line that cannot be read there is an error,
// which names its number and shows nothing of it, and so for the last one if it was cut off; then
// it goes on.
func Read(r io.Reader) iter.Seq2[Parked, error] {
	return func(yield func(Parked, error) bool) {
		b := bufio.NewReaderSize(r, 64<<10)
		for n := 1; ; n++ {
			line, ended, err := readLine(b)
			if !ended && err != nil && !errors.Is(err, io.EOF) {
				yield(Parked{}, fmt.Errorf("canal: parked: line %d: %w", n, err))
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
	return Parked{}, fmt.Errorf("canal: parked: line %d: %w", n, err)
}

// readLine reads to the end of a line, and keeps no more than one byte too many of it. ended tells
// that there was an end; otherwise err is why not.
func readLine(b *bufio.Reader) (line []byte, ended bool, err error) {
	for {
		part, err := b.ReadSlice('\n')
		line = append(line, part[:min(len(part), maxLine+1-len(line))]...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err == nil, err
		}
	}
}

// Read goes through what is in the file: see the function Read. Where there is none, nothing was
// parked. It may be used while others Park.
//
// Rows that were read and dealt with are not removed from the file. To remove them, rename the
// file, in whose place Park makes another, and read the old one by the function Read.
func (f *File) Read() iter.Seq2[Parked, error] {
	return func(yield func(Parked, error) bool) {
		file, size, err := f.open()
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				yield(Parked{}, fmt.Errorf("canal: parking: %w", err))
			}
			return
		}
		defer file.Close() //nolint:errcheck // it was read only
		Read(io.LimitReader(file, size))(yield)
	}
}

// open answers how long the file is, too, at a time when nobody is writing a line.
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
