package promises

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
)

// gather makes Redis gather announcements for most of a second before it delivers them.
func (b backend) gather(t *testing.T) {
	t.Helper()
	now, err := b.admin.Time(t.Context()).Result()
	for rng := 0; rng < conn.Ranges && err == nil; rng++ {
		err = b.admin.HSet(t.Context(), invalidation.Numbers("cacheaside", rng), ":due",
			strconv.FormatInt(now.UnixMicro()+900_000, 10)).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A read with After observes the invalidations of its token, although this process has not received
// them yet. Once it has, memory serves the read.
func TestAfter(t *testing.T) {
	for name, invalidate := range map[string]func(ctx context.Context, p process) error{
		"keys":     func(ctx context.Context, p process) error { return p.Invalidate(ctx, 1, 2) },
		"Expire":   func(ctx context.Context, p process) error { return p.Expire(ctx, 1, 2) },
		"group":    func(ctx context.Context, p process) error { return p.InvalidateGroup(ctx, "red") },
		"all":      func(ctx context.Context, p process) error { return p.InvalidateAll(ctx) },
		"of Cache": func(ctx context.Context, p process) error { return p.cache.InvalidateKeys(ctx, p.Key(1), p.Key(2)) },
		"two calls": func(ctx context.Context, p process) error {
			return errors.Join(p.Invalidate(ctx, 2), p.Invalidate(ctx, 1))
		},
	} {
		servers := each
		if name == "keys" {
			servers = everywhere
		}
		t.Run(name, func(t *testing.T) {
			servers(t, func(t *testing.T, b backend) {
				flushAll(t, b)
				d := newTable(map[int]string{1: "red old", 2: "red old"})
				options := byParityAndColor()
				options.StaleFor = -1 // Expire makes no stale value visible
				p, q := start(t, b, d, patient, options), start(t, b, d, patient, options)
				p.remembers(t, 1, "red old")
				p.remembers(t, 2, "red old")
				q.want(t, 1, "red old", nil)
				d.write(1, "red new")
				d.write(2, "red new")
				b.gather(t)
				ctx, written := cacheaside.Collect(t.Context())
				if err := invalidate(ctx, q); err != nil {
					t.Fatal(err)
				}
				after := cacheaside.After(written())
				if got, err := p.Get(t.Context(), 1, after); got != "red new" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
				if got, err := p.GetMany(t.Context(), []int{2}, after); got[2] != "red new" || err != nil {
					t.Errorf("%v, %v", got, err)
				}
				waitFor(t, func() bool {
					hits := p.Stats().MemoryHits
					if got, err := p.Get(t.Context(), 1, after); got != "red new" || err != nil {
						t.Fatalf("%q, %v", got, err)
					}
					return p.Stats().MemoryHits == hits+1
				})
			})
		})
	}
}

// A Token that is empty changes nothing. One that this cache cannot know makes a read Fresh.
func TestTokensFromElsewhere(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, patient, nil)
	p.remembers(t, 1, "one")
	another := patient
	another.Prefix = "another"
	ctx, of := cacheaside.Collect(t.Context())
	if err := start(t, b, d, another, nil).Invalidate(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token cacheaside.Token
		hits  int64
	}{
		"empty":     {"", 1},
		"malformed": {"?", 0},
		"cut":       {of()[:len(of())-3], 0},
		"long":      {cacheaside.Token(strings.Repeat("A", 10_000)), 0},
		"another":   {of(), 0},
	} {
		before := p.Stats().MemoryHits
		if got, err := p.Get(t.Context(), 1, cacheaside.After(c.token)); got != "one" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if hits := p.Stats().MemoryHits - before; hits != c.hits {
			t.Errorf("%s: %d hits in memory, want %d", name, hits, c.hits)
		}
	}
}
