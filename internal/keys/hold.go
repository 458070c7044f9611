package keys

// Hold is the name of what puts a key on hold, made of the key's own name in Redis. It is in the
// same slot, and no name of any Namespace, for those end with the brace, nor of anything else that
// is kept in Redis.
func Hold(name string) string { return name + ":hold" }
