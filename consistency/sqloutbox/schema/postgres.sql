-- The outbox of cacheaside on PostgreSQL: pending invalidations. Times are microseconds since 1970, by the clock of the server. A row belongs to the caches with its namespace.
-- all_keys is 0 for a key, 1 for all keys of a loader, and 2 for a group of keys, whose name is in text.
CREATE TABLE IF NOT EXISTS cacheaside_outbox (
	namespace BYTEA NOT NULL CHECK (octet_length(namespace) <= 255),
	id BYTEA NOT NULL CHECK (octet_length(id) = 16),
	due BIGINT NOT NULL,
	created BIGINT NOT NULL,
	claim BIGINT NOT NULL DEFAULT 0,
	was_due BIGINT NOT NULL DEFAULT 0,
	since BIGINT NOT NULL DEFAULT 0,
	loader BYTEA NOT NULL CHECK (octet_length(loader) <= 255),
	version BYTEA NOT NULL CHECK (octet_length(version) <= 255),
	text BYTEA NOT NULL CHECK (octet_length(text) <= 65535),
	all_keys SMALLINT NOT NULL,
	again BIGINT NOT NULL,
	reload SMALLINT NOT NULL,
	attempts INTEGER NOT NULL,
	admit SMALLINT NOT NULL,
	PRIMARY KEY (id, namespace)
);
CREATE INDEX IF NOT EXISTS cacheaside_outbox_due ON cacheaside_outbox (namespace, due, created);
