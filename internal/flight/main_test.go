package flight

import (
	"context"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// do is g.Do with rounds that are not prepared.
func do[K comparable, R any](g *Group[K, R], ctx context.Context, key K) (*R, error) {
	return g.Do(ctx, key, func() *Round[K, R] { return new(Round[K, R]) })
}

// doMany is do for DoMany.
func doMany[K comparable, R any](g *Group[K, R], ctx context.Context, keys []K) ([]*Round[K, R], []error) {
	return g.DoMany(ctx, keys, func(int) *Round[K, R] { return new(Round[K, R]) })
}
