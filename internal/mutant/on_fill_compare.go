//go:build mutant_fill_compare

package mutant

const Active = "fill_compare"
