package lease

import (
	"bytes"
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// chunk is how much of a long entry is read in one trip: little, so that others' replies come
// between, and the time-out is one for progress.
const chunk = 256 << 10

// maxFetches is how often a long entry is read from its beginning, where it has changed meanwhile.
const maxFetches = 3

var errChanging = errors.New("a long entry changed during each attempt to read it")

// Fetch reads all of what a key holds of which the first look has shown the beginning. Content
// longer than most bytes is not read: it is Unknown, and Raw its beginning.
//
// Each part is read with the header behind it, whose stamp is another as soon as the entry is: so
// the parts are of one entry. A claim changes the header, too: then it is read again.
func (s *Store) Fetch(ctx context.Context, key string, look []byte, most int) (State, error) {
	for range maxFetches {
		f := fetch{store: s, key: key, most: most, parts: [][]byte{look}, n: len(look)}
		if len(look) == 0 {
			f.parts = nil
		}
		changed, err := f.run(ctx)
		switch {
		case err != nil:
			return State{}, err
		case !changed:
			return f.state(), nil
		}
		look = nil
	}
	return State{}, errChanging
}

// fetch is one try to read a long entry.
type fetch struct {
	store *Store
	key   string
	most  int
	parts [][]byte
	n     int // bytes of parts
	long  bool
}

func (f *fetch) run(ctx context.Context) (changed bool, err error) {
	for first := true; ; first = false {
		part := redis.NewStringCmd(ctx, "getrange", f.key, f.n, f.n+chunk-1)
		header := redis.NewStringCmd(ctx, "getrange", f.key, 0, headerSize-1)
		cmds := []redis.Cmder{part, header}
		if first { // is there anything beyond?
			cmds = append(cmds, redis.NewStringCmd(ctx, "getrange", f.key, f.most, f.most))
		}
		sent := f.store.large(ctx, f.store.conn.Timeout(), cmds)
		for i, cmd := range cmds {
			if err := sent.Err(i); err != nil {
				return false, err
			}
			if err := cmd.Err(); err != nil {
				return false, err
			}
		}
		b, _ := part.Bytes()
		if len(b) > 0 {
			f.parts, f.n = append(f.parts, b), f.n+len(b)
		}
		if now, _ := header.Bytes(); !bytes.Equal(now, f.header()) {
			return true, nil
		}
		if f.long = first && cmds[2].(*redis.StringCmd).Val() != ""; f.long || len(b) < chunk {
			return false, nil
		}
	}
}

func (f *fetch) header() []byte {
	if f.n == 0 {
		return nil
	}
	return f.parts[0][:min(headerSize, len(f.parts[0]))]
}

func (f *fetch) state() (s State) {
	switch {
	case f.n == 0:
		return State{}
	case f.long:
		return State{Kind: Unknown, Long: true, Raw: f.parts[0]}
	}
	whole := make([]byte, 0, f.n)
	for _, part := range f.parts {
		whole = append(whole, part...)
	}
	return decode(whole)
}
