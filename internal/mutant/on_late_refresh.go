//go:build mutant_late_refresh

package mutant

const Active = "late_refresh"
