//go:build mutant_second_check

package mutant

const Active = "second_check"
