// Package dblayers shows cacheaside next to GORM, ent, sqlc and pgx. Its tests are the code of
// docs/guides/database.md, run on MariaDB and, for pgx, on PostgreSQL. The package is a separate
// module, so that the library does not depend on these packages.
package dblayers
