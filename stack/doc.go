// Package stack puts the parts of a service together on one database and one Redis: a Cache, an
// outbox with its Writer, locks, filters, and a consumer of the database's log. It opens, runs and
// closes them in the right order.
//
//	s, err := stack.New(db, rdb, &stack.Options{Cache: &cacheaside.Options{Prefix: "shop"}})
//	users, err := cacheaside.NewLoader(s.Cache, "user", load, nil) // writes: s.Writer
//	err = s.CreateTables(ctx)                                       // in production: a migration
//	err = s.Follow(source, []canal.Binding{
//		canal.Bind(users, "public", "users", canal.IntColumn[int64]("id")),
//	}, nil)
//	err = s.Run(ctx, serve) // until ctx ends
//
// Each part can also be made by hand, with more choices. The package only calls the other ones.
package stack
