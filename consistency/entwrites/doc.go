// Package entwrites invalidates caches by the writes that ent makes. Its driver reads the rows that
// an INSERT, UPDATE or DELETE changes, before and after the statement, and puts the keys and groups
// of both into the outbox, in the transaction of the statement.
//
// Loaders are bound to tables by canal.Bind and canal.BindGroup. The same Bindings can serve a
// canal.Consumer.
//
// Writes that go past the driver, and changes that the database makes by itself (triggers, foreign
// keys with ON DELETE CASCADE), are not seen. A Consumer of the database's log sees them.
package entwrites
