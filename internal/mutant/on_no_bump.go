//go:build mutant_no_bump

package mutant

const Active = "no_bump"
