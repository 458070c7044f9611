//go:build mutant_late_generation

package mutant

const Active = "late_generation"
