//go:build mutant_memory_generation

package mutant

const Active = "memory_generation"
