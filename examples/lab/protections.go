package main

// protections are what can be switched off, by name.
type protections map[string]bool

const (
	filter   = "bloom"
	nulls    = "nulls"
	stale    = "stale"
	early    = "early"
	maxLoads = "max-loads"
	breaker  = "breaker"
	memory   = "memory"
	whenDown = "stale-when-down" // the only one that is off at first, as in the library
	plainMap = "plain-map"       // of the plain world
)

// protectionNames are in the order of the page.
var protectionNames = []string{filter, nulls, stale, early, maxLoads, breaker, memory, whenDown, plainMap}

// usualProtections are all, but for one.
func usualProtections() protections {
	on := protections{}
	for _, name := range protectionNames {
		on[name] = name != whenDown
	}
	return on
}
