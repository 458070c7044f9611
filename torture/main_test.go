package torture

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	zerolog.SetGlobalLevel(zerolog.Disabled) // some toxics log unconditionally
	const proxy = "github.com/Shopify/toxiproxy/v2"
	// Goroutines of toxiproxy: it leaves some behind if a toxic is removed from a closing
	// connection.
	var ignored []goleak.Option
	for _, name := range []string{
		proxy + "/toxics.(*ToxicStub).Run", proxy + "/toxics.(*ToxicStub).InterruptToxic", proxy + ".(*ToxicLink).read",
		proxy + ".(*ToxicLink).write", proxy + ".(*ToxicLink).RemoveToxic",
		proxy + ".(*ToxicLink).RemoveToxic.func1", proxy + ".(*ToxicLink).UpdateToxic", proxy + ".(*Proxy).server",
		proxy + ".(*Proxy).freeBlocker", proxy + ".(*ToxicCollection).chainRemoveToxic.func1",
		proxy + ".(*ToxicCollection).chainAddToxic.func1", proxy + ".(*ToxicCollection).chainUpdateToxic.func1",
		proxy + "/toxics.(*ResetToxic).Pipe",
		"github.com/cacheaside/cacheaside/torture.(*link).atMost.func1",
	} {
		ignored = append(ignored, goleak.IgnoreAnyFunction(name))
	}
	testenv.Main(m, ignored...)
}

// length returns the duration from the environment, or the usual one.
func length(t *testing.T, variable string, usual time.Duration) time.Duration {
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return d
}

// seeds returns the seeds from TORTURE_SEEDS, or the usual ones.
func seeds(t *testing.T, usual ...uint64) []uint64 {
	text := os.Getenv("TORTURE_SEEDS")
	if text == "" {
		return usual
	}
	var all []uint64
	for s := range strings.SplitSeq(text, ",") {
		seed, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
		if err != nil {
			t.Fatalf("TORTURE_SEEDS: %v", err)
		}
		all = append(all, seed)
	}
	return all
}

// wanted reports whether TORTURE_TOPOLOGY contains the topology or is empty.
func wanted(topology string) bool {
	names := os.Getenv("TORTURE_TOPOLOGY")
	return names == "" || slices.Contains(strings.Split(names, ","), topology)
}
