//go:build mutant_join_running

package mutant

const Active = "join_running"
