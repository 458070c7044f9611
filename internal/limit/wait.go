package limit

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
)

// boundedWait is how long one call waits, whatever for. Its clock starts when it first has to.
type boundedWait struct {
	ctx   context.Context
	limit time.Duration

	bound  context.Context // nil: it has not waited yet
	cancel context.CancelFunc
}

func (p *boundedWait) begin() context.Context {
	if p.bound == nil {
		p.bound, p.cancel = context.WithTimeout(p.ctx, p.limit)
	}
	return p.bound
}

// end frees what waiting has taken.
func (p *boundedWait) end() {
	if p.cancel != nil {
		p.cancel()
	}
}

// acquire waits for a place in s, or until it is dropped.
func (p *boundedWait) acquire(s *line, c class) error {
	err := s.acquire(p.begin(), c)
	switch {
	case err == nil, err == errDropped: //nolint:errorlint // it is never wrapped
		return err
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	default:
		return ErrLate
	}
}

// pause waits for the rate: not at all if it would be in vain.
func (p *boundedWait) pause(d time.Duration) error {
	bound := p.begin()
	if end, ok := bound.Deadline(); ok && p.ctx.Err() == nil && time.Until(end) < d {
		if own, ok := p.ctx.Deadline(); !ok || own.After(end) { // else the call's own context ends first, which is what it is to be told
			return ErrRate
		}
	}
	return retry.Sleep(p.ctx, d)
}
