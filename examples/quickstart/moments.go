package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// moments are points in time.
type moments struct {
	mu sync.Mutex
	at []time.Time
}

func (m *moments) add(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = append(m.at, t)
}

func (m *moments) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = nil
}

func (m *moments) none() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.at) == 0
}

// most returns the largest number of moments within any window of this length.
func (m *moments) most(window time.Duration) (n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.SortFunc(m.at, time.Time.Compare)
	first := 0
	for i, t := range m.at {
		for t.Sub(m.at[first]) > window {
			first++
		}
		n = max(n, int64(i-first+1))
	}
	return n
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
