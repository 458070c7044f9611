package recycled_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type tenantKey struct{}

// request is a context object that a web framework uses again for its next request, without a lock:
// the race detector sees it when it is read after that.
type request struct {
	context.Context
	tenant string
}

func (r *request) Value(key any) any {
	if key == (tenantKey{}) {
		return r.tenant
	}
	return r.Context.Value(key)
}

// handle calls handler with a request, as a framework does, and then gives its object to the next
// request.
func handle(handler func(ctx context.Context), cancel context.CancelFunc, ctx context.Context) {
	r := &request{ctx, "own"}
	handler(r)
	cancel()
	r.tenant = "next"
}

func tenant(ctx context.Context) string {
	name, _ := ctx.Value(tenantKey{}).(string)
	return name
}

// hook is called with the context of each command.
type hook func(ctx context.Context, name string)

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(ctx, cmd.Name())
		return next(ctx, cmd)
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h(ctx, cmds[0].Name())
		return next(ctx, cmds)
	}
}
