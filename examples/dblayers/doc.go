// Package dblayers shows cacheaside next to GORM, ent, sqlc and pgx. Its tests are the code of
// docs/guides/database.md, run on MariaDB. It is a module of its own, so that the library does not
// depend on these packages.
package dblayers
