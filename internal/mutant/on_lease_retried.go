//go:build mutant_lease_retried

package mutant

const Active = "lease_retried"
