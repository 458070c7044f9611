package canal

import (
	"fmt"

	"github.com/cacheaside/cacheaside/canal/event"
)

// ofWhole tells whether it is of a table as a whole, or of several.
func ofWhole(c *event.Change) bool {
	return c.Kind == event.Truncate || c.Kind == event.Alter || c.Kind == event.Replace
}

// flaw tells which row it should have, by its kind, and has not.
func flaw(c *event.Change) error {
	before, after := c.Before.Exists(), c.After.Exists()
	switch {
	case c.Kind < event.Insert || c.Kind > event.Read:
		return fmt.Errorf("a change of %v", c.Kind)
	case !before && (c.Kind == event.Update || c.Kind == event.Delete):
		return fmt.Errorf("%v: there is no Before", c.Kind)
	case !after && (c.Kind == event.Update || c.Kind == event.Insert || c.Kind == event.Read):
		return fmt.Errorf("%v: there is no After", c.Kind)
	}
	return nil
}
