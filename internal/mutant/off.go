//go:build !mutants

package mutant

// Active is the name of the guard that this build lacks: none.
const Active = ""
