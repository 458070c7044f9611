package main

import (
	"testing"
	"time"
)

func TestLatencies(t *testing.T) {
	var l latencies
	if q := l.quantile(0.99); q != 0 {
		t.Errorf("without samples: %v", q)
	}
	for range 990 {
		l.add(time.Millisecond)
	}
	for range 10 {
		l.add(300 * time.Millisecond)
	}
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{{0.5, time.Millisecond}, {0.98, time.Millisecond}, {0.995, 300 * time.Millisecond}, {1, 300 * time.Millisecond}} {
		if got := l.quantile(c.q); got < c.want || got > c.want*5/4 {
			t.Errorf("the quantile %v is %v, want %v", c.q, got, c.want)
		}
	}
	l = latencies{}
	l.add(0)
	l.add(1000 * time.Hour) // beyond the last bucket: no panic
}

func TestTruth(t *testing.T) {
	truth := newTruth()
	now := time.Now()
	if d := truth.staleFor(1, 1, now); d != 0 {
		t.Errorf("a row without changes is stale for %v", d)
	}
	truth.settle(1, 3) // a later writer may finish first
	truth.settle(1, 2)
	later := time.Now().Add(time.Second)
	for version, stale := range map[int64]bool{1: true, 2: true, 3: false, 4: false} {
		if d := truth.staleFor(1, version, later); (d >= time.Second) != stale {
			t.Errorf("v%d is stale for %v", version, d)
		}
	}
	if d := truth.staleFor(1, 1, now); d > 0 {
		t.Errorf("a read that began before the end of the change is stale for %v", d)
	}
	for v := range int64(2 * maxRemembered) {
		truth.settle(2, v)
	}
	if n := len(truth.changes[2]); n != maxRemembered {
		t.Errorf("%d changes are remembered", n)
	}
}

func TestWords(t *testing.T) {
	for n, want := range map[int]string{0: "0 loads", 1: "1 load", 999: "999 loads", 1000: "1,000 loads",
		1234567: "1,234,567 loads"} {
		if got := count(n, "load"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for d, want := range map[time.Duration]string{1500 * time.Microsecond: "1.5 ms", 20 * time.Millisecond: "20 ms",
		2 * time.Second: "2,000 ms", 12 * time.Second: "12.0 s"} {
		if got := milliseconds(d); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
