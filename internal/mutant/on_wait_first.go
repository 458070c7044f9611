//go:build mutant_wait_first

package mutant

const Active = "wait_first"
