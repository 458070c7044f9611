package main

import (
	"slices"
	"sync"
	"time"
)

// maxEvents is the maximum number of lines in a log.
const maxEvents = 40

// event is one line of a system's log: the effect of a switch.
type event struct {
	ID     int64  `json:"id"`
	At     int64  `json:"at"` // milliseconds since the start
	Switch string `json:"switch"`
	Text   string `json:"text"`
	Done   bool   `json:"done"` // false while the effect is measured
}

// eventLog is the log of one system.
type eventLog struct {
	start time.Time

	mu     sync.Mutex
	last   int64
	events []event
}

// begin adds a line whose effect is still measured.
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

// finish replaces the text of a line and marks it as done.
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
	return append([]event{}, e.events...) // never null in JSON
}

// note replaces the text of a line that is not done.
func (e *eventLog) note(id int64, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.events {
		if e.events[i].ID == id {
			e.events[i].Text = text
		}
	}
}
