//go:build mutant_fill_absent

package mutant

const Active = "fill_absent"
