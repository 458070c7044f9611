//go:build mutant_tag_unescaped

package mutant

const Active = "tag_unescaped"
