package canal

import (
	"maps"
	"strings"
	"sync"

	"github.com/cacheaside/cacheaside/canal/event"
)

// presence records which bound tables exist, as far as that is known. Without it, a Binding with
// a misspelt table would receive no changes and report no error.
type presence struct {
	names map[event.Table]event.Table // bound tables by their names in lower case

	mu         sync.Mutex
	changed    map[event.Table]bool   // for each bound table, whether a change of it has arrived
	missing    map[event.Table]string // missing tables, with the reason
	incomplete map[event.Table]string // tables of which not all changes arrive, with the reason
}

func newPresence(bindings []Binding) *presence {
	p := &presence{names: map[event.Table]event.Table{}, changed: map[event.Table]bool{},
		missing: map[event.Table]string{}}
	for _, b := range bindings {
		p.names[lower(b.table)] = b.table
		p.changed[b.table] = false
	}
	return p
}

func lower(t event.Table) event.Table {
	return event.Table{Schema: strings.ToLower(t.Schema), Name: strings.ToLower(t.Name)}
}

// recordChange records that a change of t has arrived. If t is not bound, but a bound table
// differs from it only in case, recordChange returns the bound table as missing, unless changes
// of that table have arrived.
func (p *presence) recordChange(t event.Table) (missing map[event.Table]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, bound := p.changed[t]; bound {
		p.changed[t] = true
		delete(p.missing, t)
		return nil
	}
	near, ok := p.names[lower(t)]
	if !ok || p.changed[near] {
		return nil
	}
	return map[event.Table]string{near: "changes arrive of " + t.Schema + "." + t.Name +
		": table names are case-sensitive"}
}

// set records missing tables, each with the reason, and returns those that were not recorded with
// the same reason. If all is set, no other tables are missing.
func (p *presence) set(tables map[event.Table]string, all bool) (added map[event.Table]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	added = maps.Clone(tables)
	maps.DeleteFunc(added, func(t event.Table, reason string) bool { return p.missing[t] == reason })
	if all {
		clear(p.missing)
	}
	maps.Copy(p.missing, tables)
	return added
}

// setIncomplete records all incomplete tables, each with the reason, and returns those that were
// not recorded with the same reason.
func (p *presence) setIncomplete(tables map[event.Table]string) (added map[event.Table]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	added = maps.Clone(tables)
	maps.DeleteFunc(added, func(t event.Table, reason string) bool { return p.incomplete[t] == reason })
	p.incomplete = maps.Clone(tables)
	return added
}

// absences returns the titles of the Bindings whose table is missing or incomplete, each with the
// reason, and the titles of the Bindings for whose table no change has arrived.
func (p *presence) absences(bindings []Binding) (missing, unchanged []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, tables := range []map[event.Table]string{p.missing, p.incomplete} {
		for i := range bindings {
			if reason, ok := tables[bindings[i].table]; ok {
				missing = append(missing, bindings[i].title()+": "+reason)
			}
		}
	}
	for i := range bindings {
		b := &bindings[i]
		if !p.changed[b.table] {
			unchanged = append(unchanged, b.title())
		}
	}
	return missing, unchanged
}

// kind says what the first table of absences is.
func (p *presence) kind() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.missing) > 0 {
		return "no such table"
	}
	return "not all changes of a table arrive"
}
