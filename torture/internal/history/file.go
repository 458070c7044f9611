package history

import (
	"bufio"
	"io"
	"os"
	"sync"
)

// Writer appends operations to a file, each with one system call. So a process that is killed loses
// no recorded operation. The start of a write must be known even if its end is not.
type Writer struct {
	mu     sync.Mutex
	file   *os.File
	buffer []byte
}

// Create creates the file.
func Create(name string) (*Writer, error) {
	f, err := os.Create(name)
	return &Writer{file: f}, err
}

// Record appends ops.
func (w *Writer) Record(ops ...Op) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buffer = w.buffer[:0]
	for i := range ops {
		w.buffer = ops[i].append(w.buffer)
	}
	if _, err := w.file.Write(w.buffer); err != nil {
		panic(err) // a history with holes proves nothing
	}
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Read appends the operations in a process's file to ops. It skips an incomplete last operation of
// a process that was killed.
func Read(ops []Op, name string, process int) ([]Op, error) {
	f, err := os.Open(name)
	if os.IsNotExist(err) {
		return ops, nil // the process was killed before its first operation
	}
	if err != nil {
		return ops, err
	}
	defer f.Close() //nolint:errcheck // read only
	r := bufio.NewReaderSize(f, 1<<20)
	var b [opSize]byte
	for {
		switch _, err := io.ReadFull(r, b[:]); err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return ops, nil
		default:
			return ops, err
		}
		op := decode(b[:])
		op.Process = process
		ops = append(ops, op)
	}
}
