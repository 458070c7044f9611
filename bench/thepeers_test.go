package bench

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// version returns the version of a module in go.mod.
func version(t *testing.T, module string) string {
	t.Helper()
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mod)) {
		if f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require ")); len(f) >= 2 && f[0] == module {
			return f[1]
		}
	}
	t.Fatalf("go.mod does not have %s", module)
	return ""
}

// TestThePeers lists the peers: the setup of each, and its features that cacheaside lacks.
func TestThePeers(t *testing.T) {
	server := testenv.SharedRedis(t)
	table := &Table{
		Title: "The peers", Text: "Each peer has the best settings that its documentation recommends for this work. " +
			"The codec of all is encoding/json, unless the settings say another. Nulls: it caches the absence of a " +
			"row. Notifies: Invalidate reaches the memory of other processes. Floors are the simplest code that does " +
			"the work, without any protection.",
		Head: []string{"", "version", "tiers", "batch", "nulls", "notifies", "settings",
			"features that cacheaside lacks"},
	}
	for _, p := range slices.Concat(Peers(), Floors()) {
		c := open(t, p, Config{Redis: server.Addr,
			Load: func(context.Context, string) (*Row, error) { return nil, ErrNotFound }})
		_, batch := c.(Batcher)
		notifies := "–"
		if p.Memory && p.Redis {
			notifies = yes(p.Notifies)
		}
		v := "this one"
		if p.Name != own {
			v = version(t, p.Module)
		}
		table.Row(p.Name, v, tiers(p), yes(batch), yes(p.Nulls), notifies, p.Settings, p.Has)
	}
	publish(t, table)
}

func tiers(p Peer) string {
	switch {
	case p.Memory && p.Redis:
		return "memory, Redis"
	case p.Memory:
		return "memory"
	default:
		return "Redis"
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
