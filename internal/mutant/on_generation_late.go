//go:build mutant_generation_late

package mutant

const Active = "generation_late"
