//go:build mutant_return_refused

package mutant

const Active = "return_refused"
