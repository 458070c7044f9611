package bench

import "go.uber.org/goleak"

// leftBehind are goroutines that peers never end.
var leftBehind = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/mgtv-tech/jetcache-go/stats.(*innerStats).statLoop"), // jetcache-go: one for the process, also with statistics off
}
