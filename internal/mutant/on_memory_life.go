//go:build mutant_memory_life

package mutant

const Active = "memory_life"
