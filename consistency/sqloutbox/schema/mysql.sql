-- The outbox of cacheaside on MySQL (from 8.0.17) and MariaDB (from 10.6): pending invalidations. The table must use InnoDB, and its index must be named "due".
-- Times are microseconds since 1970, by the clock of the server. A row belongs to the caches with its namespace.
-- all_keys is 0 for a key, 1 for all keys of a loader, and 2 for a group of keys, whose name is in text.
CREATE TABLE IF NOT EXISTS cacheaside_outbox (
	namespace VARBINARY(255) NOT NULL,
	id BINARY(16) NOT NULL,
	due BIGINT NOT NULL,
	created BIGINT NOT NULL,
	claim BIGINT NOT NULL DEFAULT 0,
	was_due BIGINT NOT NULL DEFAULT 0,
	since BIGINT NOT NULL DEFAULT 0,
	loader VARBINARY(255) NOT NULL,
	version VARBINARY(255) NOT NULL,
	text BLOB NOT NULL,
	all_keys TINYINT NOT NULL,
	again BIGINT NOT NULL,
	reload TINYINT NOT NULL,
	attempts INT NOT NULL,
	admit TINYINT NOT NULL,
	PRIMARY KEY (namespace, id),
	KEY due (namespace, due, created)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
