//go:build mutant_panic_escapes

package mutant

const Active = "panic_escapes"
