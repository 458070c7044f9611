//go:build mutant_claim_outlives

package mutant

const Active = "claim_outlives"
