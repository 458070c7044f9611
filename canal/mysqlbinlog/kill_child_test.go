package mysqlbinlog

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func init() {
	testenv.RegisterChild("play-consumer", playConsumer)
	testenv.RegisterChild("play-reader", playReader)
}

// told is the state that a consumer prints, as lines of JSON.
type told struct {
	canal.Stats
	Refused   int64 // saves
	LastError string
}

// positionLost is a line that a consumer says before it does anything about a lost position, so
// that it has said so, whenever it is killed.
const positionLost = "position lost"

// lossTeller is a log that says positionLost.
type lossTeller struct{}

func (lossTeller) Enabled(context.Context, slog.Level) bool { return true }
func (lossTeller) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "what" && a.Value.String() == positionLost {
			fmt.Println(positionLost)
		}
		return true
	})
	return nil
}
func (l lossTeller) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l lossTeller) WithGroup(string) slog.Handler      { return l }

// playConsumer consumes until it is killed.
func playConsumer() {
	p := ofPlay()
	c, refused, err := p.consumer(slog.New(lossTeller{}))
	if err != nil {
		panic(err)
	}
	go func() {
		if err := c.Run(context.Background()); err != nil {
			panic(err)
		}
	}()
	for {
		t := told{Stats: c.Stats(), Refused: refused.n.Load()}
		if err := t.Stats.LastError; err != nil {
			t.LastError = err.Error()
		}
		t.Stats.LastError = nil
		line, err := json.Marshal(t)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\n", line)
		time.Sleep(10 * time.Millisecond)
	}
}

// playReader caches the keys of the blocks named on its stdin. At "check" it pauses, and prints the
// keys that it still reads stale.
func playReader() {
	p := ofPlay()
	defer p.Close()
	var next atomic.Int64
	for in := bufio.NewScanner(os.Stdin); ; {
		var stop atomic.Bool
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for !stop.Load() {
					n := int(next.Load())
					for block := max(0, n-3); block < n && !stop.Load(); block++ {
						p.Read(block)
					}
					if n > 0 {
						p.Read(rand.IntN(n)) // an older one
						fmt.Println("round")
					}
					linger(p.Rest)
				}
			})
		}
		var goOn bool
		for goOn = in.Scan(); goOn; goOn = in.Scan() {
			var n int64
			if k, _ := fmt.Sscanf(in.Text(), "read %d", &n); k == 0 {
				break
			}
			next.Store(n)
		}
		stop.Store(true)
		all.Wait()
		if !goOn {
			return
		}
		stale, _, err := p.Stale(context.Background(), int(next.Load()))
		for _, s := range stale {
			fmt.Println(s)
		}
		fmt.Println("checked", err)
	}
}
