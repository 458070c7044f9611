package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	if raceEnabled { // for this process and those of a sale, which are slow too
		buyers, concurrentBuyers, ttl = 250, 2, 2*time.Second
	}
	if child() {
		return
	}
	testenv.Main(m)
}

// patience is the buyers' patience in scenarios that should not get stuck: a busy machine may sell
// nothing for a while.
func patience(s scenario) time.Duration {
	if s.want == stuck {
		return 2 * time.Second
	}
	return testenv.Hang
}

// raced are the sales that run under the race detector too, which makes them five times slower.
// Together they contain all concurrent code.
var raced = map[int]bool{8: true, 10: true, 14: true, 18: true, 21: true}

// struck reports whether the fault occurred. It did not if the run passed its place, or if no
// process held the lock. A sale with a lock of the library may never get stuck, with any fault, so
// such a sale is not repeated.
func struck(got sale, err error) bool {
	switch {
	case err != nil:
		return !errors.Is(err, errNoFault)
	case got.library && got.outcome() == stuck:
		return true
	case got.plan.until == second:
		return got.seconds == 1
	default:
		return !got.library || got.plan.until != anotherSale || got.refused > 0
	}
}

// Each lock from the articles fails in its own way under its injected fault. The library's locks do
// not fail under the same faults, each of which really occurs.
func TestSales(t *testing.T) {
	runs := 1
	if testenv.Accepting {
		runs = 20
	}
	for i, s := range scenarios {
		if raceEnabled && !raced[i+1] {
			continue
		}
		t.Run(fmt.Sprint(i+1, " ", s.name), func(t *testing.T) {
			for range runs {
				got, err := hold(t.Context(), i, patience(s), false)
				// A busy machine may need several tries.
				for began := time.Now(); !struck(got, err) && time.Since(began) < testenv.Hang; {
					t.Logf("the fault did not occur: %v", cmp.Or(err, got.holds()))
					got, err = hold(t.Context(), i, patience(s), false)
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := got.holds(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// On MariaDB and MySQL, where sessions wait for each other's rows, the locks fail or hold as they
// do on SQLite. If time is short, the holder of the library's lock does not know that it is lost.
// The token in the row then refuses its write.
func TestSalesOnServers(t *testing.T) {
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) {
		for i, s := range scenarios {
			if !testenv.Accepting && i+1 != 16 {
				continue
			}
			t.Run(fmt.Sprint(i+1, " ", s.name), func(t *testing.T) {
				var got sale
				err := errNoFault
				// A busy machine may need several tries.
				for tries := 0; !struck(got, err) && tries < 20; tries++ {
					t.Run("", func(t *testing.T) { // each try in its own database
						got, err = holdAt(t.Context(), e.Shared(t).DSN(t), i, patience(s), false)
					})
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := got.holds(); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// A sale that succeeds by luck, or without its fault, does not count.
func TestHolds(t *testing.T) {
	articles := sale{scenario: scenarios[8], sold: pieces + 1}
	late := sale{scenario: scenarios[6], sold: pieces + 1, seconds: 1}
	dead := sale{scenario: scenarios[2], left: pieces}
	library := sale{scenario: scenarios[15], sold: pieces, refused: 1}
	// The loser's GETSET came after the winner's release.
	both := sale{scenario: scenarios[3], sold: 2, left: pieces - 1}
	for _, s := range []sale{articles, late, dead, library, both} {
		if err := s.holds(); err != nil {
			t.Error(err)
		}
	}
	articles.sold, late.seconds, dead.sold, library.refused = pieces, 0, 1, 0
	short := sale{scenario: scenarios[15], sold: pieces - 1, refused: 1}
	for _, s := range []sale{articles, late, dead, library, short} {
		if s.holds() == nil {
			t.Errorf("%s, %s: no error", s.name, s.happens)
		}
	}
}

// Without the fault, each of the locks that exclude processes sells each piece once.
func TestSalesWithoutFaults(t *testing.T) {
	for i, s := range scenarios[2:] {
		// A lock of the articles lives for half a second, so a busy machine can be a fault.
		if !testenv.Accepting && (!s.library || i%4 != 0) {
			continue
		}
		// Covered by TestSales; it takes half a minute under the race detector.
		if raceEnabled && s.name == "redlock.New" {
			continue
		}
		t.Run(fmt.Sprint(i+3, " ", s.name), func(t *testing.T) {
			got, err := hold(t.Context(), i+2, time.Minute, true) // it ends when everything is sold
			if err != nil || got.outcome() != fine || got.sold != pieces {
				t.Errorf("sold %d, left %d, %v", got.sold, got.left, err)
			}
		})
	}
}

// Any number of segments sells every piece.
func TestSegmentsLoseNothing(t *testing.T) {
	for _, n := range []int{1, manySegments} {
		got, err := measure(t.Context(), testenv.SharedRedis(t).Addr,
			measurement{Segments: n, Buyers: 20, Work: 2 * time.Millisecond, For: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d segments: %.0f purchases a second", n, got.perSec)
		if got.lost != 0 || got.perSec == 0 {
			t.Errorf("%+v", got)
		}
	}
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	header(&out)
	for i, s := range scenarios {
		row(&out, i+1, sale{scenario: s, sold: 1000, left: 100, refused: 100})
	}
	for line := range strings.Lines(out.String() + legend) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) >= 100 {
			t.Errorf("a long line: %s", line)
		}
	}
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, row := range rows[1:] {
		if len(row) != len(rows[1]) {
			t.Errorf("a misaligned row: %s", row)
		}
	}
}

func TestFlags(t *testing.T) {
	var help bytes.Buffer
	if _, err := parse([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("error %v", err)
	}
	for _, bad := range [][]string{{"-only", "22"}, {"-only", "-1"}, {"-patience", "1ms"}, {"more"}, {"-unknown"}} {
		if _, err := parse(bad, io.Discard); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	c, err := parse(nil, io.Discard)
	if want := (config{patience: 2 * time.Second}); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
}

// stopper is a standard output that cancels when the first sale is reported.
type stopper struct{ cancel context.CancelCauseFunc }

var errStopped = errors.New("interrupted by the test")

func (s stopper) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("oversold")) {
		time.AfterFunc(300*time.Millisecond, func() { s.cancel(errStopped) })
	}
	return len(p), nil
}

func TestInterrupted(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := run(ctx, config{patience: time.Minute, only: 3}, stopper{cancel}); !errors.Is(err, errStopped) {
		t.Errorf("error %v", err)
	}
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}
