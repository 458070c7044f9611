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
func (l *eventLog) begin(name, text string) (id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.events = append(l.events, event{ID: l.last, At: time.Since(l.start).Milliseconds(), Switch: name, Text: text})
	if len(l.events) > maxEvents {
		l.events = slices.Delete(l.events, 0, len(l.events)-maxEvents)
	}
	return l.last
}

// finish replaces what a line says.
func (l *eventLog) finish(id int64, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.events {
		if l.events[i].ID == id {
			l.events[i].Text, l.events[i].Done = text, true
		}
	}
}

func (l *eventLog) lines() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]event{}, l.events...) // not null in JSON
}

// note replaces what a line says that is yet to be finished.
func (l *eventLog) note(id int64, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.events {
		if l.events[i].ID == id {
			l.events[i].Text = text
		}
	}
}
