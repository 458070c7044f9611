//go:build mutant_unpack_unbounded

package mutant

const Active = "unpack_unbounded"
