// Package linked holds programs that show what a program links that imports this module: get reads
// through a cache, and plain does the same by go-redis alone.
package linked
