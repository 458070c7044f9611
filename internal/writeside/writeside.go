// Package writeside is what package consistency is given of a Cache, and nobody else.
package writeside

// Cache is a Cache as package consistency sees it.
type Cache interface {
	// Closed tells whether it was closed.
	Closed() bool

	// Strict tells whether it has Options.StrictWrites.
	Strict() bool

	// Loader tells whether this process has a loader of that name, and whether that has a filter.
	Loader(name string) (has, filter bool)
}

// Of is the Cache of a *cacheaside.Cache, and Existing tells whether a cacheaside.Key is that of a
// row that was there before. Package cacheaside sets both.
var (
	Of       func(cache any) Cache
	Existing func(key any) bool
)
