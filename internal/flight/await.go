package flight

import "context"

// Completed tells whether the round has been brought to its end.
func (r *Round[K, R]) Completed() bool {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	return r.completed
}

// await waits until done is closed, which is when r has completed.
func (g *Group[K, R]) await(ctx context.Context, r *Round[K, R], done <-chan struct{}) (*R, error) {
	if g.hooks.Await != nil {
		over, refused := g.hooks.Await(ctx, r.self[:])
		if refused != nil && !g.leave(r) {
			return nil, refused[0]
		}
		if over != nil {
			defer over()
		}
	}
	left := ctx.Done()
	select {
	case <-done:
		return &r.Result, r.Err
	case <-left:
		g.leave(r)
		return nil, ctx.Err()
	case <-g.closed:
		g.leave(r)
		return nil, g.cause
	}
}

// awaitAll waits until all rounds have completed, those of the flight own and others, or there is a
// reason to stop waiting. It notes in errs why a caller gets nothing of a round.
func (g *Group[K, R]) awaitAll(ctx context.Context, own *Flight[K, R], rounds []*Round[K, R], errs []error) {
	var stopped error
	if g.hooks.Await != nil {
		over, refused := g.hooks.Await(ctx, rounds)
		if over != nil {
			defer over()
		}
		stopped = g.refuse(rounds, errs, refused)
	}
	if stopped == nil {
		stopped = g.awaitRounds(ctx, own, rounds)
	}
	for i, r := range rounds {
		if stopped != nil && r != nil && !g.leave(r) {
			errs[i] = stopped
		}
	}
}

// refuse leaves rounds that are not to be waited for. If one of them is of the caller's own flight,
// which would go on with it, the caller waits for none, and refuse returns why.
func (g *Group[K, R]) refuse(rounds []*Round[K, R], errs, refused []error) error {
	for i, err := range refused {
		if err != nil && rounds[i].done == nil {
			return err
		}
	}
	for i, err := range refused {
		if err != nil && !g.leave(rounds[i]) {
			rounds[i], errs[i] = nil, err
		}
	}
	return nil
}

// awaitRounds waits until all rounds have completed, or answers why it does not.
func (g *Group[K, R]) awaitRounds(ctx context.Context, own *Flight[K, R], rounds []*Round[K, R]) error {
	await := func(done <-chan struct{}) error {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-g.closed:
			return g.cause
		}
	}
	if own != nil {
		if err := await(own.done); err != nil {
			return err
		}
	}
	for _, r := range rounds {
		if r != nil && r.done != nil {
			if err := await(r.done); err != nil {
				return err
			}
		}
	}
	return nil
}
