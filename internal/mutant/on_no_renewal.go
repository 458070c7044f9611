//go:build mutant_no_renewal

package mutant

const Active = "no_renewal"
