package bench

import "go.uber.org/goleak"

// leftBehind are goroutines that peers never end.
var leftBehind = []goleak.Option{
	// jetcache-go: one for the process, even with statistics off.
	goleak.IgnoreAnyFunction("github.com/mgtv-tech/jetcache-go/stats.(*innerStats).statLoop"),
	// gocache: one for each chain, which it keeps in memory.
	goleak.IgnoreAnyFunction("github.com/eko/gocache/lib/v4/cache.(*ChainCache[...]).setter"),
	// go-zero: three as soon as it is linked (signals, load of the machine, deletions to retry),
	// and one for each Stat.
	goleak.IgnoreAnyFunction("github.com/zeromicro/go-zero/core/proc.init.1.func1"),
	goleak.IgnoreAnyFunction("github.com/zeromicro/go-zero/core/stat.init.1.func1"),
	goleak.IgnoreAnyFunction("github.com/zeromicro/go-zero/core/collection.(*TimingWheel).run"),
	goleak.IgnoreAnyFunction("github.com/zeromicro/go-zero/core/stores/cache.(*Stat).statLoop"),
}
