//go:build mutant_bump_first

package mutant

const Active = "bump_first"
