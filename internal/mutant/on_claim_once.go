//go:build mutant_claim_once

package mutant

const Active = "claim_once"
