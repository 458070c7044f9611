package meter

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// In a large fleet a share of the processes replies. Even then the interval contains the true share
// of writes with a different copy in some process, in 95 % of the cases.
func TestIntervalOfSampledProcesses(t *testing.T) {
	const processes, questions, runs = 1000, 60, 40
	contained, undecided := 0, int64(0)
	for run := range runs {
		r := rand.New(rand.NewPCG(1, uint64(run)))
		m := &Meter{results: make([]Result, 1), listeners: processes}
		for range questions {
			probes := make([]*probe, measure.MaxAsked)
			different := make([]map[int]bool, len(probes)) // by process
			for i := range probes {
				probes[i] = &probe{sample: &sample{}, redis: measure.None}
				if r.IntN(100) == 0 { // 1 % of the writes are missed by one process
					different[i] = map[int]bool{r.IntN(processes): true}
				}
			}
			share, replies := m.share(), []string(nil)
			for p := range processes {
				if r.Float64() >= share {
					continue
				}
				var reply strings.Builder
				for i := range probes {
					verdict := measure.Same
					if different[i][p] {
						verdict = measure.Different
					}
					reply.WriteByte(byte(verdict))
				}
				replies = append(replies, reply.String())
			}
			m.count(probes, share, processes, replies, nil)
		}
		c := m.results[0].consistency()
		if c.Replied < 0.09 || c.Replied > 0.11 || !strings.Contains(c.String(), "of the processes have replied") {
			t.Fatalf("%.3f replied: %v", c.Replied, c)
		}
		if c.Low <= 0.01 && 0.01 <= c.High {
			contained++
		}
		undecided += c.Undecided
	}
	if contained < runs*95/100 {
		t.Errorf("the interval contains the share in %d of %d cases", contained, runs)
	}
	if undecided > runs*questions*measure.MaxAsked/100 {
		t.Errorf("%d undecided", undecided)
	}
}

// If clearly fewer processes reply than the share that a question asks for, its checks are
// undecided.
func TestSampledProcessesAreSilent(t *testing.T) {
	m := &Meter{results: make([]Result, 1), listeners: 1000}
	for _, replies := range []int{100, 80, 60, 0} {
		m.count([]*probe{{sample: &sample{}, redis: measure.None}}, m.share(), 1000,
			slices.Repeat([]string{string([]byte{byte(measure.None)})}, replies), nil)
	}
	if got := m.results[0]; got.Consistent != 2 || got.Unanswered != 2 {
		t.Errorf("%+v", got)
	}
	if s := m.Stats(); s.Asked != 400 || s.Answered != 240 {
		t.Errorf("%+v", s)
	}
}

// A process replies to a question with the probability that the question states.
func TestShareOfProcessesReplies(t *testing.T) {
	server := testenv.SharedRedis(t)
	d := newRows()
	const processes, questions = 10, 12
	var fleet []member
	for range processes {
		fleet = append(fleet, join(t, server.Client(t), d, patient).hear(t))
	}
	c := measure.Of(fleet[0].cache)
	for share, most := range map[float64]int{0: processes * questions, 1: processes * questions, 0.25: 70} {
		replies := 0
		for range questions {
			q := measure.Question{ID: rand.Uint64(), Patience: 10 * time.Second, Share: share}
			before := fleet[0].Stats().Bus.Questions
			if n, err := c.Ask(t.Context(), q); n != processes || err != nil {
				t.Fatalf("%d listeners, %v", n, err)
			}
			testenv.Eventually(t, "the question", func() bool { return fleet[0].Stats().Bus.Questions > before })
			time.Sleep(20 * time.Millisecond) // a late reply counts as none
			got, err := c.Replies(t.Context(), q.ID)
			if err != nil {
				t.Fatal(err)
			}
			replies += len(got)
		}
		if replies == 0 || replies > most {
			t.Errorf("share %v: %d replies of %d processes to %d questions", share, replies, processes, questions)
		}
	}
}
