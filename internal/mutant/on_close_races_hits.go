//go:build mutant_close_races_hits

package mutant

const Active = "close_races_hits"
