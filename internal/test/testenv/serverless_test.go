package testenv

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestServerless(t *testing.T) {
	s := startServerless(t)
	client, ctx := s.Client(t), t.Context()
	const key = "{tag}"
	many := func(n int) []any { // a command with n arguments
		args := []any{"del"}
		for len(args) < n {
			args = append(args, key)
		}
		return args
	}
	for _, args := range [][]any{
		{"set", key, "1"}, many(3999), {"eval", "return redis.call('time')", 1, key}, {"publish", "channel", "message"},
	} {
		if err := client.Do(ctx, args...).Err(); err != nil {
			t.Errorf("%v with %d arguments: %v", args[0], len(args), err)
		}
	}
	if refused := s.reasons(); len(refused) > 0 {
		t.Error(refused)
	}
	var want []string
	for reason, args := range map[string][]any{
		"del with 4000 arguments": many(4000),
		"eval without keys":       {"eval", "return 1", 0},
		"evalsha without keys":    {"evalsha", "hash", 0},
		"config":                  {"config", "get", "maxmemory"},
		"monitor":                 {"monitor"},
		"psubscribe":              {"psubscribe", "*"},
		"select":                  {"select", 1},
	} {
		want = append(want, reason)
		// In one pipeline: the replies stay in order.
		var before, refused, after *redis.Cmd
		_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error {
			before, refused, after = p.Do(ctx, "echo", "before"), p.Do(ctx, args...), p.Do(ctx, "echo", "after")
			return nil
		})
		if before.Val() != "before" || refused.Err() == nil || after.Val() != "after" {
			t.Errorf("%s: %v, %v, %v", reason, before, refused.Err(), after)
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(s.reasons())); !slices.Equal(got, want) {
		t.Errorf("refused %q, want %q", got, want)
	}
	if err := s.AdminClient(t).Do(ctx, "config", "get", "maxmemory").Err(); err != nil {
		t.Error("without the rules:", err)
	}
}
