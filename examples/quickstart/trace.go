package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
)

// The requests for product pages of a real web shop; see testdata/README.md for their source.
//
//go:embed testdata/web12.trace.gz
var web12 []byte

// trace is a sequence of requests, by product.
type trace struct {
	all      []int64
	accesses []int64 // the part to replay
}

// readTrace reads the embedded trace. The first n accesses are replayed, or all if n is 0 or too
// large.
func readTrace(n int) (*trace, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(web12))
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	data, err := io.ReadAll(unzipped)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	t := &trace{all: make([]int64, 0, len(data)/4)}
	for ; len(data) >= 4; data = data[4:] {
		t.all = append(t.all, int64(int32(binary.BigEndian.Uint32(data))))
	}
	t.accesses = t.all
	if n > 0 && n < len(t.all) {
		t.accesses = t.all[:n]
	}
	return t, nil
}

// products returns all products of the trace, in the order of their first access.
func (t *trace) products() []int64 { return distinct(t.all) }

func distinct(ids []int64) []int64 {
	seen := make(map[int64]bool)
	var out []int64
	for _, id := range ids {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}
