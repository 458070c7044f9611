//go:build mutant_process_gate

package mutant

const Active = "process_gate"
