//go:build mutant_no_parting

package mutant

const Active = "no_parting"
