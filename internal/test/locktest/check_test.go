package locktest

import (
	"testing"
	"time"
)

// A history without lost locks is valid.
func TestHistoryWithoutLosses(t *testing.T) {
	var events []Event
	for i := range int64(30) {
		e := Event{Name: "a", Op: "acquire", Lease: uint64(i + 1), Token: i + 1, Call: 10 * i, Return: 10*i + 1}
		events = append(events, e)
		e.Op, e.Call, e.Return = "release", 10*i+2, 10*i+3
		events = append(events, e)
	}
	check(t, events, time.Millisecond)
}
