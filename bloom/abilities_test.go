package bloom_test

import (
	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
)

// The filters have the optional abilities that loaders use. The assertions are in a test, because
// the tests of package cacheaside import package bloom.
var (
	_ cacheaside.Filter       = bloom.Filter(nil)
	_ cacheaside.FilterNow    = (*bloom.Local)(nil)
	_ cacheaside.FilterNow    = (*bloom.Replica)(nil)
	_ cacheaside.FilterFresh  = (*bloom.Replica)(nil)
	_ cacheaside.FilterOwned  = (*bloom.Redis)(nil)
	_ cacheaside.FilterOwned  = (*bloom.Replica)(nil)
	_ cacheaside.FilterHidden = (*bloom.Local)(nil)
	_ cacheaside.FilterHidden = (*bloom.Redis)(nil)
	_ cacheaside.FilterHidden = (*bloom.Replica)(nil)
)
