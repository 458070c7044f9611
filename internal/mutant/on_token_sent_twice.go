//go:build mutant_token_sent_twice

package mutant

const Active = "token_sent_twice"
