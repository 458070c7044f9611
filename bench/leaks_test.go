package bench

import "go.uber.org/goleak"

// leftBehind are goroutines that peers never end.
var leftBehind []goleak.Option
