//go:build !nosqlite

package sqlite

// The driver "sqlite". To compile it takes 22 s, so that checks that need no database leave it out.
import _ "modernc.org/sqlite"
