package bench

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// version is that of a module in go.mod.
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

// Which peers are compared, how each is set up, and what it has and cacheaside has not.
func TestThePeers(t *testing.T) {
	server := testenv.SharedRedis(t)
	table := &Table{
		Title: "The peers", Text: "Each with the best settings that its documentation gives for this work; encoding/json is the codec of all. Nulls: it remembers that a row does not exist. Tells: Invalidate reaches the memory of other processes. Floors do the least that the work needs, and protect from nothing.",
		Head: []string{"", "version", "tiers", "batch", "nulls", "tells", "settings", "it has, and cacheaside has not"},
	}
	for _, p := range slices.Concat(Peers(), Floors()) {
		c := open(t, p, Config{Redis: server.Addr, Load: func(context.Context, string) (*Row, error) { return nil, ErrNotFound }})
		_, batch := c.(Batcher)
		told := "–"
		if p.Memory && p.Redis {
			told = yes(p.Tells)
		}
		v := "this one"
		if p.Name != own {
			v = version(t, p.Module)
		}
		table.Row(p.Name, v, tiers(p), yes(batch), yes(p.Nulls), told, p.Settings, p.Has)
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
