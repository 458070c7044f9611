package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/cacheaside/cacheaside/lock"
)

// taskVariable is the environment variable that holds the task of a copy of this program.
const taskVariable = "FLASHSALE_TASK"

// task is the work of one process. The process prints "ready" and waits for the start signal. The
// victim prints "begun" when its fault begins. At the end the process prints its result. It ends
// early when its input is closed.
type task struct {
	Redis []string
	Shop  string // location of the shop: see openShop

	Scenario    int
	Healthy     bool // no fault is injected
	Victim      bool
	First, Last int // range of buyers

	Measure *measurement // measures instead of running a sale
}

// result is the result that a process prints at its end.
type result struct {
	Refused int           // purchases whose token was too old
	Bought  int           // purchases of a measurement
	Took    time.Duration // duration of a measurement
}

// process is the state of this process in a sale.
type process struct {
	task    task
	shop    *shop
	faults  *faults
	rdb     *redis.Client
	masters []*redis.Client // all Redis servers; rdb is the first
	close   []func() error
}

func randomly(d time.Duration) time.Duration { return rand.N(d) }

// child runs the task if this process was started for one.
func child() (wasOne bool) {
	text := os.Getenv(taskVariable)
	if text == "" {
		return false
	}
	logging.Disable() // failing requests are part of the demonstration
	if err := work(text); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "flashsale:", err)
		os.Exit(1)
	}
	return true
}

func work(text string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := &process{task: t}
	if err := p.open(ctx); err != nil {
		return err
	}
	defer p.end()
	do, err := p.prepare()
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	r := do(ctx)
	return json.NewEncoder(os.Stdout).Encode(r)
}

func (p *process) open(ctx context.Context) (err error) {
	p.faults = &faults{}
	if p.task.Shop != "" {
		if p.shop, err = openShop(ctx, p.task.Shop); err != nil {
			return err
		}
		p.close = append(p.close, p.shop.Close)
		plan := scenarios[p.task.Scenario]
		p.faults = p.shop.faults
		*p.faults = faults{shop: p.shop, plan: plan.plan, victim: p.task.Victim, begun: func() { fmt.Println("begun") },
			pause: maxPause}
		if p.task.Healthy {
			p.faults.plan = fault{}
		}
		if plan.library && !p.task.Victim {
			p.faults.pause = ttl / 2 // no other buyer is going to come
		}
	}
	for _, address := range p.task.Redis {
		rdb := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true, PoolSize: 64, MaxRetries: -1,
			Protocol: 2})
		rdb.AddHook(p.faults)
		p.masters = append(p.masters, rdb)
		p.close = append(p.close, rdb.Close)
	}
	p.rdb = p.masters[0]
	return nil
}

// end closes everything in reverse order.
func (p *process) end() {
	for i := range p.close {
		_ = p.close[len(p.close)-1-i]()
	}
}

func (p *process) prepare() (func(context.Context) result, error) {
	if p.task.Measure != nil {
		return p.task.Measure.prepare(p)
	}
	sell, err := scenarios[p.task.Scenario].sell(p)
	return func(ctx context.Context) result { return p.serve(ctx, sell) }, err
}

// concurrentBuyers is the number of buyers that a process serves concurrently.
var concurrentBuyers = 8 // a variable for tests

// serve serves all buyers of this process.
func (p *process) serve(ctx context.Context, sell sellFunc) result {
	var next, refused atomic.Int64
	next.Store(int64(p.task.First))
	var all sync.WaitGroup
	for range concurrentBuyers {
		all.Go(func() {
			for {
				buyer := int(next.Add(1)) - 1
				if buyer >= p.task.Last || ctx.Err() != nil {
					return
				}
				refused.Add(p.serveOne(ctx, sell, buyer))
			}
		})
	}
	all.Wait()
	return result{Refused: int(refused.Load())}
}

// serveOne retries for one buyer until the purchase succeeds, the stock is sold out, or the shop
// closes.
func (p *process) serveOne(ctx context.Context, sell sellFunc, buyer int) (refused int64) {
	for ctx.Err() == nil {
		if left, err := p.shop.left(ctx); err == nil && left == 0 {
			return refused
		}
		err := sell(ctx, buyer)
		switch {
		case err == nil, errors.Is(err, errSoldOut):
			return refused
		case errors.Is(err, lock.ErrStale):
			refused++
		}
		time.Sleep(time.Millisecond + randomly(time.Millisecond))
	}
	return refused
}

// started is a process that was started for a task.
type started struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(ctx context.Context, t task) (*started, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	s := &started{cmd: exec.CommandContext(ctx, self)}
	s.cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewScanner(out)
	return s, s.cmd.Start()
}

// expect reads the next line and returns an error if it is not word.
func (s *started) expect(word string) error {
	if !s.out.Scan() {
		return fmt.Errorf("a process ended before it printed %s: %w", word,
			errors.Join(s.out.Err(), io.ErrUnexpectedEOF))
	}
	if s.out.Text() != word {
		return fmt.Errorf("a process printed %q, not %q", s.out.Text(), word)
	}
	return nil
}

func (s *started) begin() error {
	_, err := fmt.Fprintln(s.in, "begin")
	return err
}

// result reads the last line and waits for the process to end. A process that crashes
// deliberately has no result.
func (s *started) result() (r result, err error) {
	for s.out.Scan() {
		if err := json.Unmarshal(s.out.Bytes(), &r); err != nil && s.out.Text() != "begun" {
			return r, fmt.Errorf("a process printed %q", s.out.Text())
		}
	}
	s.in.Close()
	return r, errors.Join(s.out.Err(), s.cmd.Wait())
}

// kill kills the process.
func (s *started) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}
