-- The outbox of cacheaside on SQLite (from 3.37): pending invalidations. Times are microseconds since 1970. A row belongs to the caches with its namespace.
-- all_keys is 0 for a key, 1 for all keys of a loader, and 2 for a group of keys, whose name is in text.
CREATE TABLE IF NOT EXISTS cacheaside_outbox (
	namespace BLOB NOT NULL CHECK (length(namespace) <= 255),
	id BLOB NOT NULL CHECK (length(id) = 16),
	due INTEGER NOT NULL,
	created INTEGER NOT NULL,
	claim INTEGER NOT NULL DEFAULT 0,
	was_due INTEGER NOT NULL DEFAULT 0,
	since INTEGER NOT NULL DEFAULT 0,
	loader BLOB NOT NULL CHECK (length(loader) <= 255),
	version BLOB NOT NULL CHECK (length(version) <= 255),
	text BLOB NOT NULL CHECK (length(text) <= 65535),
	all_keys INTEGER NOT NULL,
	again INTEGER NOT NULL,
	reload INTEGER NOT NULL,
	attempts INTEGER NOT NULL,
	admit INTEGER NOT NULL,
	PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS cacheaside_outbox_due ON cacheaside_outbox (namespace, due, created);
