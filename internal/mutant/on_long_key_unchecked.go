//go:build mutant_long_key_unchecked

package mutant

const Active = "long_key_unchecked"
