//go:build mutant_abandoned_runs

package mutant

const Active = "abandoned_runs"
