package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A child process opens a peer and executes orders, so that a peer that crashes or hangs affects
// only its own process, and a fleet consists of real processes.

func init() { testenv.RegisterChild("peer", peerChild) }

// dbRow is the row that the process's database has for a key, and describes how a load of it ends.
type dbRow struct {
	Value string        // of Row.Name; empty: the row does not exist
	Takes time.Duration // between reading the row and returning it
	Ends  string        // "panic" or "goexit" ends the load instead
	Tell  bool          // send a message when a load has read the row
	Deaf  bool          // the load ignores its context
}

// childOrder is one line to a process. The process executes orders immediately and concurrently.
type childOrder struct {
	ID       int
	Do       string // rows, get, invalidate, watch, replay, loads
	Rows     map[string]dbRow
	Keys     []string
	Callers  int           // get: number of concurrent callers of each key
	Turns    int           // get: sequential instead: this many goroutines read the keys in turn
	Deadline time.Duration // get: of each caller's context
	Cancel   time.Duration // get: when the first caller's context is cancelled
	Within   time.Duration // get, watch, replay: how long to wait for callers
	Value    string        // watch: the expected value
	Still    time.Duration // watch: how long only Value may be seen
	Pause    time.Duration // watch: between two reads
	Trace    []traceRead   // replay: the reads
	Start    int64         // replay: start of its clock
}

// childReply is one line from a process: a reply to an order, or a message.
type childReply struct {
	ID       int
	Began    string         // message instead of a reply: a load of this key has read its row
	Callers  []callerResult // get, replay
	Loads    []loadSpan     // loads: since the previous such order
	At       int64          // invalidate: when it returned
	Stale    int64          // watch: start of the last read that did not return Value; 0: all returned it
	Seen     int            // watch: reads that returned Value
	Err      string
	Finished bool // watch: only Value was returned for the time Still
}

// callerResult is the result of one caller.
type callerResult struct {
	Key   int `json:",omitempty"` // replay
	Began int64
	Took  time.Duration
	Value string `json:",omitempty"`
	Err   string `json:",omitempty"`
}

// loadSpan is one call of the load function, in Unix nanoseconds.
type loadSpan struct {
	Key        string
	Began, End int64
}

// Results of a caller other than a value or an error of the peer.
const (
	gotAbsent  = "absent"   // ErrNotFound
	gotNothing = "neither"  // neither a value nor an error
	gotPanic   = "panic"    // in the caller's own goroutine
	gotExit    = "exit"     // the caller's own goroutine has exited
	gotNever   = "never"    // it had not returned at the end of the wait
	gotLate    = "deadline" // its context ended
)

type childProcess struct {
	cache Cache
	outMu sync.Mutex
	out   *json.Encoder

	mu    sync.Mutex
	rows  map[string]dbRow // "" is the row of all other keys
	loads []loadSpan
}

func peerChild() {
	p := &childProcess{out: json.NewEncoder(os.Stdout), rows: map[string]dbRow{}}
	var c Config
	if err := json.Unmarshal([]byte(os.Getenv("BENCH_CONFIG")), &c); err != nil {
		panic(err)
	}
	c.Load = p.load
	peer, ok := peerNamed(os.Getenv("BENCH_PEER"))
	if !ok {
		panic("no such peer")
	}
	var err error
	if p.cache, err = peer.Open(c); err != nil {
		panic(err)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var o childOrder
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			panic(err)
		}
		go func() {
			a := p.obey(o)
			a.ID = o.ID
			p.tell(a)
		}()
	}
}

// variants are peers of a single workload.
var variants []Peer

func peerNamed(name string) (Peer, bool) {
	all := slices.Concat(registered, variants)
	i := slices.IndexFunc(all, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return Peer{}, false
	}
	return all[i], true
}

func (p *childProcess) tell(a childReply) {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	p.out.Encode(a)
}

func (p *childProcess) obey(o childOrder) (a childReply) {
	switch o.Do {
	case "rows":
		p.mu.Lock()
		defer p.mu.Unlock()
		maps.Copy(p.rows, o.Rows)
	case "get":
		a.Callers = p.callers(o)
	case "invalidate":
		for _, key := range o.Keys {
			if err := p.cache.(Invalidator).Invalidate(context.Background(), key); err != nil {
				a.Err = err.Error()
			}
		}
		a.At = time.Now().UnixNano()
	case "watch":
		p.watch(o, &a)
	case "loads":
		p.mu.Lock()
		defer p.mu.Unlock()
		a.Loads, p.loads = p.loads, nil
	case "replay":
		a.Callers = p.replay(o)
	default:
		a.Err = "no such order"
	}
	return a
}

// load is the load function of the process: it reads the row and then waits for the row's time.
func (p *childProcess) load(ctx context.Context, key string) (*Row, error) {
	p.mu.Lock()
	row, ok := p.rows[key]
	if !ok {
		row = p.rows[""]
	}
	n := len(p.loads)
	p.loads = append(p.loads, loadSpan{Key: key, Began: time.Now().UnixNano()})
	p.mu.Unlock()
	if row.Tell {
		p.tell(childReply{Began: key})
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if n < len(p.loads) {
			p.loads[n].End = time.Now().UnixNano()
		}
	}()
	if err := takeTime(ctx, row); err != nil {
		return nil, err
	}
	if row.Value == "" {
		return nil, ErrNotFound
	}
	return &Row{ID: 1, Name: row.Value, Text: text200, Price: 9.99}, nil
}

// takeTime is the rest of a load after it has read the row. It ends with its context, as a query
// does, unless the row is deaf.
func takeTime(ctx context.Context, row dbRow) error {
	ended := ctx.Done()
	if row.Deaf {
		ended = nil
	}
	select {
	case <-time.After(row.Takes):
	case <-ended:
		return ctx.Err()
	}
	switch row.Ends {
	case "panic":
		panic("the load function")
	case "goexit":
		runtime.Goexit()
	}
	return nil
}

// callers starts all callers of an order.
func (p *childProcess) callers(o childOrder) []callerResult {
	var mu sync.Mutex // guards results, because some callers may still run on return
	got := make([]callerResult, len(o.Keys)*max(1, o.Callers))
	for i := range got {
		got[i].Err = gotNever
	}
	if o.Within == 0 {
		o.Within = time.Minute
	}
	end := time.Now().Add(o.Within)
	goroutines := len(got)
	if o.Turns > 0 {
		goroutines = o.Turns
	}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			<-start
			for i := g; i < len(got) && time.Now().Before(end); i += goroutines {
				p.caller(o, i, func(c callerResult) {
					mu.Lock()
					defer mu.Unlock()
					got[i] = c
				})
			}
		})
	}
	time.Sleep(time.Millisecond)
	close(start)
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(o.Within):
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(got)
}

// caller reads once, and reports its result even if its goroutine exits in the read.
func (p *childProcess) caller(o childOrder, i int, say func(callerResult)) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if o.Cancel > 0 {
		if i == 0 {
			time.AfterFunc(o.Cancel, cancel)
		} else {
			time.Sleep(o.Cancel / 4) // so that the first caller begins first
		}
	}
	if o.Deadline > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.Deadline)
		defer cancel()
	}
	began := time.Now()
	c := callerResult{Began: began.UnixNano(), Err: gotExit}
	defer func() {
		if recover() != nil { // as net/http does
			c.Value, c.Err = "", gotPanic
		}
		c.Took = time.Since(began)
		say(c)
	}()
	c.Value, c.Err = p.get(ctx, o.Keys[i%len(o.Keys)])
}

func (p *childProcess) get(ctx context.Context, key string) (value, failure string) {
	r, err := p.cache.Get(ctx, key)
	switch {
	case err == nil && r == nil, err == nil && r.Name == "":
		return "", gotNothing
	case err == nil:
		return r.Name, ""
	case errors.Is(err, ErrNotFound):
		return "", gotAbsent
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "", gotLate
	default:
		return "", fmt.Sprintf("%.80s", err)
	}
}

// watch reads a key until it has returned only the value for a while.
func (p *childProcess) watch(o childOrder, a *childReply) {
	began := time.Now()
	last := began
	for time.Since(began) < o.Within {
		at := time.Now()
		value, failure := p.get(context.Background(), o.Keys[0])
		if failure != "" {
			value = failure
		}
		if value == o.Value {
			a.Seen++
		} else {
			a.Stale, last = at.UnixNano(), at
		}
		if time.Since(last) >= o.Still && a.Seen > 0 {
			a.Finished = true
			return
		}
		if time.Since(began) > slowly {
			// The resolution can be coarser by now.
			o.Pause = max(o.Pause, 5*time.Millisecond)
		}
		time.Sleep(o.Pause)
	}
}

const slowly = 200 * time.Millisecond
