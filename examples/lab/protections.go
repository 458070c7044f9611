package main

// protections lists the protections that can be turned off, by name.
type protections map[string]bool

const (
	filter   = "bloom"
	nulls    = "nulls"
	stale    = "stale"
	early    = "early"
	maxLoads = "max-loads"
	breaker  = "breaker"
	memory   = "memory"
	whenDown = "stale-when-down" // the only one that is off by default, as in the library
	plainMap = "plain-map"       // of plain
)

// protectionNames has the order of the page.
var protectionNames = []string{filter, nulls, stale, early, maxLoads, breaker, memory, whenDown, plainMap}

// usualProtections returns all protections except whenDown.
func usualProtections() protections {
	on := protections{}
	for _, name := range protectionNames {
		on[name] = name != whenDown
	}
	return on
}
