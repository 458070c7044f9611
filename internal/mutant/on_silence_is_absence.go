//go:build mutant_silence_is_absence

package mutant

const Active = "silence_is_absence"
