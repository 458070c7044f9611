package bloom_test

import (
	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/fetch"
)

// The filters have the optional abilities that loaders use. The assertions are in a test, because
// the tests of package cacheaside import package bloom.
var (
	_ cacheaside.Filter  = bloom.Filter(nil)
	_ fetch.FilterNow    = (*bloom.Local)(nil)
	_ fetch.FilterNow    = (*bloom.Replica)(nil)
	_ fetch.FilterFresh  = (*bloom.Replica)(nil)
	_ fetch.FilterOwned  = (*bloom.Redis)(nil)
	_ fetch.FilterOwned  = (*bloom.Replica)(nil)
	_ fetch.FilterHidden = (*bloom.Local)(nil)
	_ fetch.FilterHidden = (*bloom.Redis)(nil)
	_ fetch.FilterHidden = (*bloom.Replica)(nil)
)
