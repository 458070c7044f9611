//go:build mutant_token_per_process

package mutant

const Active = "token_per_process"
