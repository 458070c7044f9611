package rows

import "context"

// HasFilter reports whether the loader has a filter.
func (c *Core) HasFilter() bool { return c.options.Filter != nil }

// Inserting adds the keys of rows to the filter, if there is one, and counts errors. The caller
// calls committed, which is never nil without an error, after the commit.
func (c *Core) Inserting(ctx context.Context, texts []string) (committed func(context.Context) error, err error) {
	if !c.HasFilter() || len(texts) == 0 {
		return func(context.Context) error { return nil }, nil
	}
	var finish func(context.Context) error
	err = c.guardFilter(func() (err error) {
		finish, err = c.options.Filter.Inserting(ctx, texts)
		return err
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if finish == nil {
			return nil
		}
		return c.guardFilter(func() error { return finish(ctx) })
	}, nil
}

// guardFilter calls f, which uses the filter, and counts its error or panic.
func (c *Core) guardFilter(f func() error) error {
	err := c.cache.Guard(f)
	if err != nil {
		c.Counters.FilterErrors.Add(1)
	}
	return err
}
