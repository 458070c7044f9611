//go:build mutant_no_release

package mutant

const Active = "no_release"
