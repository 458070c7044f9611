//go:build mutants

package mutant

import "os"

// Active is the name of the guard that this process lacks.
var Active = os.Getenv("CACHEASIDE_MUTANT")
