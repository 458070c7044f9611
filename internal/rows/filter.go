package rows

import "context"

// HasFilter reports whether the loader has a filter.
func (c *Core) HasFilter() bool { return c.options.Filter != nil }

// Inserting adds the keys of rows to the filter, if there is one, and counts errors. committed,
// never nil, finishes that.
func (c *Core) Inserting(ctx context.Context, texts []string) (committed func(context.Context) error, err error) {
	if !c.HasFilter() || len(texts) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	finish, err := c.addToFilter(ctx, texts)
	if err != nil {
		c.Counters.FilterErrors.Add(1)
		return nil, err
	}
	return func(ctx context.Context) error {
		err := c.guarded(ctx, finish)
		if err != nil {
			c.Counters.FilterErrors.Add(1)
		}
		return err
	}, nil
}

func (c *Core) addToFilter(ctx context.Context, texts []string) (committed func(context.Context) error, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.cache.Caught(p)
		}
	}()
	committed, err = c.options.Filter.Admit(ctx, texts)
	if committed == nil {
		committed = func(context.Context) error { return nil }
	}
	return committed, err
}

// guarded calls f, and makes an error of a panic.
func (c *Core) guarded(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.cache.Caught(p)
		}
	}()
	return f(ctx)
}
