package main

import (
	"slices"
	"sync"
	"time"
)

// maxEvents is how many lines of a log are kept.
const maxEvents = 40

// event is one line of a world's log: what a switch has come to.
type event struct {
	ID     int64  `json:"id"`
	At     int64  `json:"at"` // milliseconds since the start
	Switch string `json:"switch"`
	Text   string `json:"text"`
	Done   bool   `json:"done"` // false: it is still being measured
}

// eventLog is the log of one world.
type eventLog struct {
	start time.Time

	mu     sync.Mutex
	last   int64
	events []event
}

// begin writes a line that is to be finished.
func (e *eventLog) begin(name, text string) (id int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	e.events = append(e.events, event{ID: e.last, At: time.Since(e.start).Milliseconds(), Switch: name, Text: text})
	if len(e.events) > maxEvents {
		e.events = slices.Delete(e.events, 0, len(e.events)-maxEvents)
	}
	return e.last
}

// finish replaces what a line says.
func (e *eventLog) finish(id int64, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.events {
		if e.events[i].ID == id {
			e.events[i].Text, e.events[i].Done = text, true
		}
	}
}

func (e *eventLog) lines() []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]event{}, e.events...) // not null in JSON
}

// note replaces what a line says that is yet to be finished.
func (e *eventLog) note(id int64, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.events {
		if e.events[i].ID == id {
			e.events[i].Text = text
		}
	}
}
