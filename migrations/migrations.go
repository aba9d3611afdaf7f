// Package migrations holds the schema of the index's database, as goose migrations: one SQL file per version, each with its
// way up and its way down.
//
// Rules. A released file is never changed, only followed by another. It leaves a database that the programs of the version before go on writing to,
// because a new standby migrates before the old writer stops. Each file runs in one transaction together with the
// row that records its version, so a migration is applied whole or not at all. Every table and column has a comment: the
// schema is read by people who have nothing but psql. Text that is compared or ordered is COLLATE "C", so that the answers
// and the use of indexes do not depend on the locale of the database.
package migrations

import "embed"

// Files are the migrations, named NNNNN_name.sql.
//
//go:embed *.sql
var Files embed.FS
