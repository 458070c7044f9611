//go:build mutant_fill_claim

package mutant

const Active = "fill_claim"
