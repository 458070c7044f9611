package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/stack"
)

// A User is a row of the table users.
type User struct {
	ID    int64
	City  string
	Email string
	Name  string
}

// snippet: loaders
// Users reads and writes the table users.
type Users struct {
	db      *sqlx.DB
	writer  *consistency.Writer
	byID    *cacheaside.Loader[int64, User]
	byEmail *cacheaside.Loader[string, int64]   // the id, so that each row is cached once
	byCity  *cacheaside.Loader[string, []int64] // the ids of the users of a city
}

// group returns the group of the lists that contain the users of a city.
func group(city string) string { return "city:" + city }

func newUsers(s *stack.Stack, db *sqlx.DB, filter cacheaside.Filter) (*Users, error) {
	u := &Users{db: db, writer: s.Writer}
	var errs [3]error
	u.byID, errs[0] = cacheaside.NewLoader(s.Cache, "user", u.load, &cacheaside.LoaderOptions{Filter: filter})
	u.byEmail, errs[1] = cacheaside.NewLoader(s.Cache, "user-by-email", u.loadID, nil)
	u.byCity, errs[2] = cacheaside.NewLoader(s.Cache, "users-by-city", u.loadCity, &cacheaside.LoaderOptions{
		Groups: cacheaside.GroupsOf(func(city string, _ []int64) []string { return []string{group(city)} }),
	})
	return u, errors.Join(errs[:]...)
}

// The error sql.ErrNoRows of a load function says that the row does not exist.

func (u *Users) load(ctx context.Context, id int64) (user User, err error) {
	err = u.db.GetContext(ctx, &user, u.db.Rebind("SELECT id, city, email, name FROM users WHERE id = ?"), id)
	return user, err
}

func (u *Users) loadID(ctx context.Context, email string) (id int64, err error) {
	err = u.db.GetContext(ctx, &id, u.db.Rebind("SELECT id FROM users WHERE email = ?"), email)
	return id, err
}

func (u *Users) loadCity(ctx context.Context, city string) (ids []int64, err error) {
	query := u.db.Rebind("SELECT id FROM users WHERE city = ? ORDER BY id LIMIT 100")
	err = u.db.SelectContext(ctx, &ids, query, city)
	return ids, err // a city without users is a value, not ErrNotFound
}

// end

// Get returns a user, or an error that Is cacheaside.ErrNotFound.
func (u *Users) Get(ctx context.Context, id int64) (User, error) { return u.byID.Get(ctx, id) }

// WithEmail returns the user with an address.
func (u *Users) WithEmail(ctx context.Context, email string) (User, error) {
	id, err := u.byEmail.Get(ctx, email)
	if err != nil {
		return User{}, err
	}
	user, err := u.Get(ctx, id)
	if err == nil && user.Email != email { // it has just changed
		err = cacheaside.ErrNotFound
	}
	return user, err
}

// InCity returns the users of a city.
func (u *Users) InCity(ctx context.Context, city string) ([]User, error) {
	ids, err := u.byCity.Get(ctx, city)
	if err != nil {
		return nil, err
	}
	var all []User
	for user, err := range u.byID.Each(ctx, ids) {
		switch {
		case errors.Is(err, cacheaside.ErrNotFound): // deleted after the list was read
		case err != nil:
			return nil, err
		case user.City == city: // otherwise the user has just moved
			all = append(all, user)
		}
	}
	return all, nil
}

// snippet: bindings
// bindings say which keys and groups a changed row has, for writes that do not go through Users.
func (u *Users) bindings(schema string) []canal.Binding {
	return []canal.Binding{
		canal.Bind(u.byID, schema, "users", canal.IntColumn[int64]("id")),
		canal.Bind(u.byEmail, schema, "users", canal.TextColumn[string]("email")),
		canal.BindGroup(u.byCity, schema, "users", canal.Text("city", "city:%s")),
	}
}

// end

// snippet: writes
// Insert adds a row.
func (u *Users) Insert(ctx context.Context, user User) error {
	return u.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.NamedExecContext(ctx,
			"INSERT INTO users (id, city, email, name) VALUES (:id, :city, :email, :name)", user)
		return err
	}, u.byID.Key(user.ID), u.byEmail.Key(user.Email), u.byCity.GroupKey(group(user.City)))
}

// Rename changes the name of a user, on which no list and no index depends.
func (u *Users) Rename(ctx context.Context, id int64, name string) error {
	return u.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		result, err := tx.ExecContext(ctx, tx.Rebind("UPDATE users SET name = ? WHERE id = ?"), name, id)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return cmp.Or(err, sql.ErrNoRows)
		}
		return nil
	}, u.byID.Key(id).Existing())
}

// Move changes the city of a user, and so two lists. The former city is only known in the
// transaction.
func (u *Users) Move(ctx context.Context, id int64, city string) error {
	return u.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		var old string
		query := "SELECT city FROM users WHERE id = ?"
		if tx.DriverName() != "sqlite" { // whose transactions are the only writers anyway
			query += " FOR UPDATE"
		}
		if err := tx.GetContext(ctx, &old, tx.Rebind(query), id); err != nil {
			return err
		}
		if err := consistency.Touch(ctx, u.byCity.GroupKey(group(old))); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, tx.Rebind("UPDATE users SET city = ? WHERE id = ?"), city, id)
		return err
	}, u.byID.Key(id).Existing(), u.byCity.GroupKey(group(city)))
}

// end
