//go:build mutant_lone_waits

package mutant

const Active = "lone_waits"
