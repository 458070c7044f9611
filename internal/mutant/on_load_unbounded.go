//go:build mutant_load_unbounded

package mutant

const Active = "load_unbounded"
