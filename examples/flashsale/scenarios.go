package main

const (
	pieces       = 100
	manySegments = 10
)

// outcome is how a sale ends.
type outcome int

const (
	fine     outcome = iota // each item was sold once
	oversold                // more items were sold than there were in stock
	stuck                   // no buyer can buy, although the stock is not empty
)

// scenario is a sale with one kind of lock and one fault.
type scenario struct {
	name     string
	happens  string
	sell     func(*process) (sellFunc, error)
	segments int // number of segments; 0 means one
	plan     fault
	want     outcome
	library  bool
}

func (s scenario) parts() int { return max(s.segments, 1) }

var (
	suspended = fault{at: hasRead, until: anotherSale}
	cutOff    = fault{at: hasRead, until: anotherSale, cut: true}
	late      = fault{at: hasWritten, until: second, cut: true}
	dies      = fault{at: hasRead, crash: true}
	clocks    = fault{at: hasRead, until: anotherSale, jump: true}
	skewed    = fault{at: hasRead, until: anotherSale, skew: true}
	unread    = fault{at: hasRead, until: anotherSale, error: true}
)

var scenarios = []scenario{
	{name: "no lock", happens: "two read before either writes", sell: withArticle(noLock), plan: suspended,
		want: oversold},
	{name: "a mutex in each process", happens: "the two are in different processes", sell: withArticle(mutexLock),
		plan: suspended, want: oversold},
	{name: "V1 SETNX, EXPIRE", happens: "crash between the two", sell: withArticle(setnxExpire),
		plan: fault{at: hasSet, crash: true}, want: stuck},
	{name: "V2 SETNX time, GETSET", happens: "a clock is a minute ahead", sell: withArticle(setnxGetset), plan: skewed,
		want: oversold},
	{name: "SETNX, JSON of the owner", happens: "one read fails", sell: withArticle(jsonMeta), plan: unread,
		want: oversold},
	{name: "a unique row", happens: "the holder dies", sell: withArticle(uniqueRow), plan: dies, want: stuck},
	{name: "V3.1 SET NX PX, DEL", happens: "a late DEL, of another's lock", sell: withArticle(setDel),
		plan: fault{at: hasWritten, until: second}, want: oversold},
	{name: "V3.2 GET, compare, DEL", happens: "a pause between the two", sell: withArticle(setCompareDel),
		plan: fault{at: hasCompared, until: second}, want: oversold},
	{name: "V4 compare-and-delete", happens: "the work outlasts the lock", sell: withArticle(setLua), plan: suspended,
		want: oversold},
	{name: "V5 HINCRBY, watchdog", happens: "renewals are cut off", sell: withArticle(hashWatchdog), plan: cutOff,
		want: oversold},
	{name: "V6 Redlock", happens: "the clocks of 3 of 5 nodes jump", sell: withArticle(redlockArticle), plan: clocks,
		want: oversold},

	{name: "lock.NewRedis", happens: "the holder dies", sell: withLibrary, plan: dies, library: true},
	{name: "lock.NewRedis", happens: "the server's clock jumps", sell: withLibrary, plan: clocks, library: true},
	{name: "lock.NewRedis", happens: "a request fails, renewals cut off", sell: withLibrary,
		plan: fault{at: hasRead, until: anotherSale, cut: true, error: true}, library: true},
	{name: "lock.NewRedis", happens: "a late release, of another's lock", sell: withLibrary, plan: late, library: true},
	{name: "lock.NewRedis", happens: "renewals cut off, holder unaware", sell: withLibrary, plan: cutOff,
		library: true},
	{name: "redlock.New", happens: "the holder dies", sell: withRedlock, plan: dies, library: true},
	{name: "redlock.New", happens: "the clocks of 3 of 5 nodes jump", sell: withRedlock, plan: clocks, library: true},
	{name: "redlock.New", happens: "renewals cut off, holder unaware", sell: withRedlock, plan: cutOff, library: true},
	{name: "lock.Segmented, 10", happens: "the holder of one dies", sell: withSegments, segments: manySegments,
		plan: dies, library: true},
	{name: "lock.Segmented, 10", happens: "renewals cut off, holder unaware", sell: withSegments,
		segments: manySegments, plan: cutOff, library: true},
}
