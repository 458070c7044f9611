package bloom

import "context"

// Filter is what Local, Redis and Replica have in common. cacheaside.LoaderOptions.Filter takes
// one.
type Filter interface {
	// MightContain tells whether a key may have been added: false means that it certainly was not.
	// The answer is true where the filter cannot say.
	MightContain(ctx context.Context, key string) (bool, error)

	// MightContainMany is MightContain for many keys: the result is as long as keys, whatever the
	// error.
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)

	// AddMany adds keys.
	AddMany(ctx context.Context, keys []string) error

	// Admit adds keys whose rows are being inserted, before the transaction commits, and committed
	// is called after that.
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)

	// NotFound tells how many keys that the filter took for present were not there.
	NotFound(keys int)
}

var (
	_ Filter = (*Local)(nil)
	_ Filter = (*Redis)(nil)
	_ Filter = (*Replica)(nil)
)
