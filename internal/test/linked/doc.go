// Package linked holds programs whose sizes show how much code this module adds to a program: get
// reads through a cache, and plain does the same with go-redis alone.
package linked
