package canal

import (
	"maps"
	"strings"
	"sync"

	"github.com/cacheaside/cacheaside/canal/event"
)

// presence records which of the bound tables exist, as far as that is known. A Binding whose table
// is misspelt would never get a change, and never fail.
type presence struct {
	names map[event.Table]event.Table // the bound tables, by their names in lower case

	mu      sync.Mutex
	heard   map[event.Table]bool   // of each bound table whether a change of it has come
	missing map[event.Table]string // why it is known that there is no such table
}

func newPresence(bindings []Binding) *presence {
	p := &presence{names: map[event.Table]event.Table{}, heard: map[event.Table]bool{}, missing: map[event.Table]string{}}
	for _, b := range bindings {
		p.names[lower(b.table)] = b.table
		p.heard[b.table] = false
	}
	return p
}

func lower(t event.Table) event.Table {
	return event.Table{Schema: strings.ToLower(t.Schema), Name: strings.ToLower(t.Name)}
}

// notice records that a change of a table has come. If that table is not bound, but its name
// differs from a bound one in upper and lower case only, it returns the bound one as missing,
// unless changes of it have come.
func (p *presence) notice(t event.Table) (missing map[event.Table]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, bound := p.heard[t]; bound {
		p.heard[t] = true
		delete(p.missing, t)
		return nil
	}
	near, ok := p.names[lower(t)]
	if !ok || p.heard[near] {
		return nil
	}
	return map[event.Table]string{near: "changes come of " + t.Schema + "." + t.Name + ": names are compared with upper and lower case"}
}

// set records that tables are missing, each with why, and returns those of which that was not
// known. all says that no others are.
func (p *presence) set(tables map[event.Table]string, all bool) (news map[event.Table]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	news = maps.Clone(tables)
	maps.DeleteFunc(news, func(t event.Table, why string) bool { return p.missing[t] == why })
	if all {
		clear(p.missing)
	}
	maps.Copy(p.missing, tables)
	return news
}

// absences returns the titles of the Bindings whose table is missing, each with why, and of those
// of whose table no change has come.
func (p *presence) absences(bindings []Binding) (missing, silent []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range bindings {
		b := &bindings[i]
		if why, ok := p.missing[b.table]; ok {
			missing = append(missing, b.title()+": "+why)
		}
		if !p.heard[b.table] {
			silent = append(silent, b.title())
		}
	}
	return missing, silent
}
