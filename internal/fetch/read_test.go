package fetch

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// completions is a Flight that records how many rounds end together.
type completions struct{ sizes []int }

func (*completions) TakeIn(*Round) {}

func (c *completions) Complete(rounds []*Round) {
	if len(rounds) > 0 {
		c.sizes = append(c.sizes, len(rounds))
	}
}

// A read of very many keys runs in batches of limited size, because each step of a batch visits
// all of its rounds.
func TestBatchesHaveLimitedSize(t *testing.T) {
	f := &Fetcher{cache: &Shared{}, Options: Options{
		Bypassed: func() bool { return true }, Generations: new(memory.Generations), Counters: new(Counters),
		Groups: groups.New(groups.Options{Local: true}),
	}}
	rounds := make([]*Round, 3*maxRounds+1)
	for i := range rounds {
		rounds[i] = new(Round)
		rounds[i].Begin(nil, nil, strconv.Itoa(i), 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // each batch ends at its first step
	c := &completions{}
	f.Read(ctx, 0, rounds, c)
	if want := []int{maxRounds, maxRounds, maxRounds, 1}; !slices.Equal(c.sizes, want) {
		t.Errorf("batches of %v rounds", c.sizes)
	}
}
