//go:build mutant_no_error_marker

package mutant

const Active = "no_error_marker"
