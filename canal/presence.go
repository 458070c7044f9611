package canal

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cacheaside/cacheaside/canal/event"
)

// presence records which of the bound tables exist, as far as that is known. A Binding whose table
// is misspelt would never get a change, and never fail.
type presence struct {
	heard []atomic.Bool               // by the number of a Binding: a change of its table has come
	names map[event.Table]event.Table // the bound tables, by their names in lower case
	some  atomic.Bool                 // missing has some

	mu      sync.Mutex
	missing map[event.Table]string // why it is known that there is no such table
}

func newPresence(bindings []Binding) *presence {
	p := &presence{heard: make([]atomic.Bool, len(bindings)), names: map[event.Table]event.Table{}}
	for i := range bindings {
		bindings[i].number = i
		t := bindings[i].table
		p.names[lower(t)] = t
	}
	return p
}

func lower(t event.Table) event.Table {
	return event.Table{Schema: strings.ToLower(t.Schema), Name: strings.ToLower(t.Name)}
}

// notice records that a change of a table has come. If that table is not bound, but its name
// differs from a bound one in upper and lower case only, the bound one is missing, unless changes
// of it have come.
func (c *Consumer) notice(change *event.Change) {
	if change.Table == "" {
		return
	}
	t := event.Table{Schema: change.Schema, Name: change.Table}
	bound := c.of[t]
	for _, b := range bound {
		if !c.presence.heard[b.number].Load() {
			c.presence.heard[b.number].Store(true)
		}
	}
	if len(bound) > 0 {
		if c.presence.some.Load() {
			c.presence.found(t)
		}
		return
	}
	near, ok := c.presence.names[lower(t)]
	if !ok || c.presence.heard[c.of[near][0].number].Load() {
		return
	}
	c.setMissing(map[event.Table]string{near: "changes come of " + t.Schema + "." + t.Name + ": names are compared with upper and lower case"}, false)
}

func (p *presence) found(t event.Table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.missing, t)
	p.some.Store(len(p.missing) > 0)
}

// setMissing takes in which tables are missing, and alerts those that were not before. all says
// that no others are.
func (c *Consumer) setMissing(tables map[event.Table]string, all bool) {
	p := c.presence
	p.mu.Lock()
	before := p.missing
	p.missing = map[event.Table]string{}
	if !all {
		maps.Copy(p.missing, before)
	}
	maps.Copy(p.missing, tables)
	p.some.Store(len(p.missing) > 0)
	p.mu.Unlock()
	for t, why := range tables {
		if before[t] == why {
			continue
		}
		for _, b := range c.of[t] {
			c.alert("missing table", b.name, errors.New(b.title()+": "+why))
		}
	}
}

// absences returns the Bindings whose table is missing, each with why, and those of whose table no
// change has come.
func (c *Consumer) absences() (missing, silent []string) {
	p := c.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range c.bindings {
		b := &c.bindings[i]
		if why, ok := p.missing[b.table]; ok {
			missing = append(missing, b.title()+": "+why)
		}
		if !p.heard[i].Load() {
			silent = append(silent, b.title())
		}
	}
	return missing, silent
}
