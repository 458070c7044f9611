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

	"github.com/cacheaside/cacheaside/internal/testenv"
)

func TestMain(m *testing.M) {
	zerolog.SetGlobalLevel(zerolog.Disabled)        // some toxics log as they please
	const proxy = "github.com/Shopify/toxiproxy/v2" // leaves some behind where a toxic is removed from a connection that is being closed
	testenv.Main(m, goleak.IgnoreAnyFunction(proxy+"/toxics.(*ToxicStub).Run"), goleak.IgnoreAnyFunction(proxy+".(*ToxicLink).read"),
		goleak.IgnoreAnyFunction(proxy+".(*ToxicLink).write"), goleak.IgnoreAnyFunction(proxy+".(*Proxy).server"),
		goleak.IgnoreAnyFunction(proxy+".(*Proxy).freeBlocker"),
		goleak.IgnoreAnyFunction(proxy+".(*ToxicLink).RemoveToxic"), goleak.IgnoreAnyFunction("github.com/cacheaside/cacheaside/torture.(*link).atMost.func1"))
}

// length is the duration that the environment asks for, or the usual one.
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

// seeds are those that TORTURE_SEEDS names, or the usual ones.
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

// wanted tells whether TORTURE_TOPOLOGY names the topology, or none.
func wanted(topology string) bool {
	names := os.Getenv("TORTURE_TOPOLOGY")
	return names == "" || slices.Contains(strings.Split(names, ","), topology)
}
