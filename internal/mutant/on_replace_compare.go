//go:build mutant_replace_compare

package mutant

const Active = "replace_compare"
