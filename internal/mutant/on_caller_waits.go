//go:build mutant_caller_waits

package mutant

const Active = "caller_waits"
