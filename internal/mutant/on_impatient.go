//go:build mutant_impatient

package mutant

const Active = "impatient"
