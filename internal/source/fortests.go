package source

import "time"

// SetLoadTimeout changes Options.LoadTimeout, while no load is under way. Tests need it, nothing
// else.
func (s *Source) SetLoadTimeout(d time.Duration) { s.options.LoadTimeout = d }
