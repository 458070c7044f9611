package cacheaside

import "context"

// Filter tells which keys certainly have no row, before Redis or the database is asked for them
// (LoaderOptions.Filter). The filters of package bloom are such. Keys are the loader's key texts: a
// string as it is, an integer in decimal, what MarshalText or LoaderOptions.Key gives. All methods
// are called by many goroutines at once, and should return when ctx ends: reads that share a
// hanging one leave by their own contexts, but Close waits for it. A panic in one does no more harm
// than an error.
//
// A Filter may have four methods more:
//
//	MightContainNow(key string) (may, known bool)
//	MightContainFresh(ctx context.Context, keys []string) ([]bool, error)
//	CheckRebuilt(check func(ctx context.Context, holds func(ctx context.Context, keys []string) ([]bool, error)) (hidden int, err error)) (remove func())
//	Hidden(ctx context.Context, key string) error
//
// MightContainNow answers at once, on the goroutine of the caller of Get, or says that it does not
// know; then MightContain is asked, as it is where there is no such method, on a goroutine of its
// own, which makes a refusal some microseconds slower. It is for filters in the memory of the
// process.
//
// MightContainFresh is asked for reads with the option Fresh. It is for filters that may learn of
// other processes' keys a little later: it must know each key whose committed (see Admit) has
// returned nil, in any process.
//
// CheckRebuilt is for filters that are built anew while they serve. The loader gives it a check,
// until Close. The filter calls that with what it has built, before it answers by it: check asks
// holds for up to 1,000 keys whose rows this loader's loads have returned within the last hour, and
// loads those that the new filter lacks. It answers how many of these rows are there: the filter
// must not hide them. An error with 0 says that it could not find out.
//
// Hidden tells the filter that it has refused a key whose row exists (see
// LoaderOptions.AuditEvery). It must say true for all keys until it was built anew, in all
// processes if it is shared. It is called again if it returns an error. A filter without it is not
// asked any more by this loader until it says true for that key.
type Filter interface {
	// MightContain tells whether there may be a row of key: false only if there is certainly none.
	// It need not say true where it returns an error.
	MightContain(ctx context.Context, key string) (bool, error)

	// MightContainMany answers for each of keys, in their order. It must not keep or change keys.
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)

	// AddMany has it say true for keys from now on. The loader does not call it; it is for who
	// fills the filter.
	AddMany(ctx context.Context, keys []string) error

	// Admit adds the keys of rows before the transaction that inserts them commits, and committed,
	// called when it has, ends what could hide them even so. Once that has returned nil, the filter
	// must say true for them, for ever. It may be called again. A nil committed has nothing to do.
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)

	// NotFound tells the filter that so many keys for which it has said true have turned out to
	// have no row. It must not block.
	NotFound(keys int)
}
