//go:build mutant_leader_cancels

package mutant

const Active = "leader_cancels"
