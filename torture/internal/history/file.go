package history

import (
	"bufio"
	"io"
	"os"
	"sync"
)

// Writer appends operations to a file. Each is one system call, so that a process that is killed
// loses nothing that it has recorded: a write must be known to have begun even if nobody can say
// how it ended.
type Writer struct {
	mu     sync.Mutex
	file   *os.File
	buffer []byte
}

// Create makes the file.
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

// Read appends the operations in a process's file to ops. The half of a last one, whose process was
// killed, is left out.
func Read(ops []Op, name string, process int) ([]Op, error) {
	f, err := os.Open(name)
	if os.IsNotExist(err) {
		return ops, nil // it was killed before its first operation
	}
	if err != nil {
		return ops, err
	}
	defer f.Close() //nolint:errcheck // it was only read
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
