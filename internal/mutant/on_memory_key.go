//go:build mutant_memory_key

package mutant

const Active = "memory_key"
